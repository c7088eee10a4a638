"""A `postgresql://` url as what a store needs, and as text without its password."""

from __future__ import annotations

import difflib
import re
import zlib
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from locktender.base.errors import InvalidInput

DEFAULT_SCHEMA = "locktender"
SCHEMES = ("postgresql", "postgres")

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_PORT = re.compile(r":([^:\]]+)$")
_LOCK_SPACE = 0x6864_6774
_YES, _NO = {"1", "true", "on", "yes"}, {"0", "false", "off", "no"}
_OURS = ("schema", "pooled", "listen")
_DRIVERS = (
    *(
        "host",
        "port",
        "user",
        "password",
        "passfile",
        "database",
        "dbname",
        "service",
        "servicefile",
    ),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
    *("gsslib", "krbsrvname", "application_name", "search_path", "options", "connect_timeout"),
)
"""Others are settings of the session, which only the server knows."""


class Options(msgspec.Struct, frozen=True):
    dsn: str
    """For the driver: without our own parameters."""
    shown: str
    """For people: without a password."""
    schema: str = DEFAULT_SCHEMA
    pooled: bool = False
    """Behind a pooler in transaction mode: nothing may outlast a transaction."""
    listen: str = ""
    """`host:port` of the server itself, for the listener; `off`: polling does it all; '': as the rest,
    if that is the server itself."""

    @property
    def where(self) -> str:
        """For people: which schema, and where it is."""
        return f"{self.shown} schema {self.schema}"

    @property
    def channel(self) -> str:
        return f"locktender:{self.schema}"

    @property
    def offers_channel(self) -> str:
        """For workers: leaders' commits, with their offers."""
        return f"lt-offers:{self.schema}"

    @property
    def ends_channel(self) -> str:
        """For those who only wait for ends of runs."""
        return f"lt-ends:{self.schema}"

    @property
    def quoted_schema(self) -> str:
        return f'"{self.schema}"'

    def lock(self, number: int) -> tuple[int, int]:
        """The key of an advisory lock that belongs to this schema."""
        return _LOCK_SPACE, zlib.crc32(f"{self.schema}:{number}".encode()) - 2**31

    @property
    def life_lock(self) -> str:
        """With the id of a worker: the name of the advisory lock that proves its life."""
        return f"locktender:{self.schema}:"

    @property
    def dump_url(self) -> str:
        """For `pg_dump`: the server itself and not a pooler, without a password."""
        parts = urlsplit(self.listen_dsn if self.listen != "off" else self.dsn)
        return urlunsplit(parts._replace(netloc=_without_password(parts.netloc)))

    @property
    def listens(self) -> bool:
        """A pooler in transaction mode takes a LISTEN, and passes nothing on."""
        return self.listen != "off" and bool(self.listen or not self.pooled)

    @property
    def listen_dsn(self) -> str:
        if not self.listen:
            return self.dsn
        parts = urlsplit(self.dsn)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        query = [
            (key, value) for key, value in parse_qsl(parts.query) if key not in {"host", "port"}
        ]
        return urlunsplit(parts._replace(netloc=user + self.listen, query=urlencode(query)))


def parse(url: str, schema: str | None = None) -> Options:
    """`postgresql://user:password@host:port/database?schema=locktender&pooled=true&listen=host:port`."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidInput(
            "the url of a PostgreSQL store begins with postgresql://.",
            field="url",
            got=f"{parts.scheme}://…",
        )
    _check_authority(parts)
    ours: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in _OURS:
            ours[key] = value
        elif key not in _DRIVERS and (near := _near(key)):
            # The server would be asked for a parameter of that name.
            raise InvalidInput(
                f"{key} is not an option of a url.",
                field="url",
                got=key,
                hint=f"Did you mean {near!r}?",
            )
        else:
            rest.append((key, value))
    # A host may stand in the query, too: an error that leaves it out hides what is wrong.
    place = urlencode([each for each in rest if each[0] in ("host", "port")], safe="/:,")
    shown = urlunsplit(
        parts._replace(
            scheme="postgresql", netloc=_without_password(parts.netloc), query=place, fragment=""
        )
    )
    listen = ours.get("listen", "")
    return Options(
        dsn=urlunsplit(parts._replace(scheme="postgresql", query=urlencode(rest), fragment="")),
        shown=shown,
        schema=_checked(ours.get("schema") or schema or DEFAULT_SCHEMA),
        pooled=_flag("pooled", ours.get("pooled", "false")),
        listen="off" if listen.lower() in _NO else listen,
    )


def _near(key: str) -> str:
    found = difflib.get_close_matches(key.lower(), (*_OURS, *_DRIVERS), n=1, cutoff=0.75)
    return found[0] if found else ""


def _check_authority(parts: SplitResult) -> None:
    """Refuses a password that ends the host too early, and ports that are none; says neither password."""
    rest = f"{parts.path}?{parts.query}#{parts.fragment}"
    if ":" in parts.netloc and "@" not in parts.netloc and "@" in rest:
        raise InvalidInput(
            "the user or password in the url has a character that must be encoded.",
            field="url",
            got="postgresql://…",
            hint="Write # as %23, / as %2F, ? as %3F, @ as %40, % as %25.",
        )
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = _PORT.search(host)
        if port and not (port[1].isdecimal() and 0 < int(port[1]) < 65_536):
            raise InvalidInput(
                "the port in the url is not a number from 1 to 65535.",
                field="url",
                got=port[1],
                hint="The default is postgresql://HOST:5432/DATABASE.",
            )


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"


def _checked(schema: str) -> str:
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidInput(
            "invalid schema name.",
            field="schema",
            got=schema,
            hint="Use lower case letters, digits and _, at most 40, not beginning with pg_.",
        )
    return schema


def _flag(name: str, value: str) -> bool:
    word = value.lower()
    if word not in _YES | _NO:
        raise InvalidInput(
            f"{name} is true or false.",
            field=name,
            got=value,
            hint=f"Write {name}=true, or nothing.",
        )
    return word in _YES
