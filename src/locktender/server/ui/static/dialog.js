"use strict";
// The commands of a dialog are made by the server from what is typed: until they have come, the old ones are not copied.
document.addEventListener("input", (event) => {
  const commands = event.target.closest?.("#dialog form")?.querySelector("#commands");
  if (commands) commands.inert = true;
});
for (const [name, waits] of [["htmx:beforeRequest", true], ["htmx:afterSwap", false]]) {
  document.addEventListener(name, (event) => {
    if (event.detail.target.id === "commands") event.detail.target.inert = waits;
  });
}
