"use strict";
// Before the first paint: the theme that was chosen here; none: the system's.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* storage may be off */ }
})();
