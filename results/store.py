"""The database under the journal: transactions, one writer a job, old versions brought up to date.

SQLite in one file, or PostgreSQL by URL. A transaction is durable when it is over; a fact that is
delivered twice is stored once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tunefarm.errors import Fenced, StoreError
from tunefarm.results import schema

BUSY_MS = 15_000
"""How long a writer waits for another one."""


class Store:
    """Open the database at `url`, making its tables if there are none.

    Raises:
        StoreError: it cannot be used, or a newer tunefarm wrote it.
        DamagedStore: SQLite says that its file is broken.
    """

    def __init__(self, url: str) -> None:
        address = _address(url)
        self.is_sqlite = address.get_backend_name() == "sqlite"
        options: dict[str, Any] = {} if self.is_sqlite else {"pool_pre_ping": True}
        try:
            # SQLite's driver begins transactions when it sees fit: here they are begun by hand.
            level = "AUTOCOMMIT" if self.is_sqlite else "READ COMMITTED"
            self._engine = sa.create_engine(url, isolation_level=level, **options)
        except (sa.exc.ArgumentError, ModuleNotFoundError) as error:
            raise StoreError(
                f"the journal {address!r} cannot be opened: {error}",
                hint="For PostgreSQL install tunefarm[postgresql]: postgresql+psycopg://...",
            ) from error
        self._open: sa.Connection | None = None
        self._fence: tuple[str, int] | None = None
        if self.is_sqlite:
            sa.event.listen(self._engine, "connect", _configure_sqlite)
        try:
            self._bring_up_to_date()
        except (sa.exc.SQLAlchemyError, UnicodeDecodeError) as error:
            damaged = self.is_sqlite and _is_damage(error)
            self.close()
            raise (DamagedStore if damaged else StoreError)(
                f"the journal {self._engine.url!r} cannot be used: {reason(error)}",
                hint="Check that it is a journal and may be written, or set TUNEFARM_HOME.",
            ) from error

    def close(self) -> None:
        self._engine.dispose()

    # ------------------------------------------------------------------ writing

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is written inside is one transaction: durable at its end, or not there."""
        with self._writing():
            yield

    def add(self, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert, leaving what is there already as it is."""
        given = list(rows)
        if not given:
            return
        if (number := schema.number_that_means(table)) and number not in given[0]:
            with self.together():
                for row in given:
                    self.add_numbered(table, row)
            return
        facts = [_with_checksum(table, row) for row in given]
        module = sqlite if self.is_sqlite else postgresql
        with self._writing() as connection:
            connection.execute(module.insert(table).on_conflict_do_nothing(), facts)

    def add_numbered(self, table: sa.Table, row: Mapping[str, Any]) -> int:
        """Insert one that is given a number which means something; that number."""
        name = schema.number_that_means(table)
        assert name is not None
        with self._writing() as connection:
            result = connection.execute(sa.insert(table).values({**row, "crc": ""}))
            (number,) = result.inserted_primary_key or (0,)
            told = schema.checksum(table, {**row, name: int(number)})
            mine = table.c[name] == int(number)
            connection.execute(sa.update(table).where(mine).values(crc=told))
            return int(number)

    def drive(self, job: str) -> int:
        """Become the one driver of `job`: its epoch. From here on this store writes only as long as
        no later driver has come, whatever it writes.

        A driver that was thought dead, and is not, finds out at its next fact.
        """
        table = schema.drivers
        with self._writing(fenced=False) as connection:
            module = sqlite if self.is_sqlite else postgresql
            # Never an epoch that was before, not even where a mended journal has lost the table.
            now = int(time.time())
            later = sa.case((table.c.epoch < now, now), else_=table.c.epoch + 1)
            first, again = module.insert(table).values(job=job, epoch=now), {"epoch": later}
            connection.execute(first.on_conflict_do_update(index_elements=["job"], set_=again))
            epoch = connection.scalar(sa.select(table.c.epoch).where(table.c.job == job))
        self._fence = (job, int(epoch or 0))
        return self._fence[1]

    @contextmanager
    def _writing(self, fenced: bool = True) -> Iterator[sa.Connection]:
        if self._open is not None:
            yield self._open
            return
        try:
            with self._engine.connect() as connection, _transaction(connection, self.is_sqlite):
                if fenced:
                    self._check_fence(connection)
                self._open = connection
                try:
                    yield connection
                finally:
                    self._open = None
        except (sa.exc.DBAPIError, UnicodeDecodeError) as error:
            raise StoreError(
                f"the journal cannot be written: {reason(error)}",
                hint="Nothing that was acknowledged is lost; free the disk or mend the store, "
                "then resume the job.",
            ) from error

    def _check_fence(self, connection: sa.Connection) -> None:
        if self._fence is None:
            return
        job, epoch = self._fence
        mine = sa.select(schema.drivers.c.epoch).where(schema.drivers.c.job == job)
        # Until this transaction is over no other driver can take the job (SQLite has one writer).
        found = connection.scalar(mine.with_for_update(read=True))
        if found != epoch:
            raise Fenced(
                f"job {job} has another driver (its epoch {found}, mine {epoch})",
                hint=f"Nothing is lost; follow it: tunefarm watch {job}",
            )

    # ------------------------------------------------------------------ reading

    def rows(self, query: Any) -> list[dict[str, Any]]:
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def facts(self, table: sa.Table, where: Any = None, order: Any = None) -> list[dict[str, Any]]:
        """Rows of `table` that say what was written; a damaged one is not among them."""
        query = sa.select(table)
        if where is not None:
            query = query.where(where)
        if order is not None:
            query = query.order_by(order)
        return schema.sound(table, self.rows(query))

    def scalar(self, query: Any) -> Any:
        with self._reading() as connection:
            return connection.scalar(query)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        if self._open is not None:  # what is being written is seen as well
            yield self._open
            return
        try:
            with self._engine.connect() as connection:
                yield connection
        except (sa.exc.DBAPIError, UnicodeDecodeError) as error:
            raise (DamagedStore if _is_damage(error) else StoreError)(
                f"the journal cannot be read: {reason(error)}",
                hint="Look at it, and mend it: tunefarm journal check --mend",
            ) from error

    def is_whole(self) -> bool:
        """Whether the database and every fact in it are as they were written."""
        return not self.damage()

    def damage(self) -> dict[str, int]:
        """Damaged facts by table; under ``file``, what SQLite itself finds wrong."""
        found: dict[str, int] = {}
        try:
            if self.is_sqlite:
                with self._reading() as connection:
                    said = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                if said != ["ok"]:
                    found["file"] = len(said)
            for table in schema.metadata.sorted_tables:
                rows = self.rows(sa.select(table)) if "crc" in table.c else []
                if bad := sum(not schema.is_sound(table, row) for row in rows):
                    found[table.name] = bad
        except (DamagedStore, sa.exc.SQLAlchemyError, ValueError, TypeError, OverflowError):
            found["file"] = found.get("file", 0) + 1
        return found

    # ----------------------------------------------------------------- versions

    def _bring_up_to_date(self) -> None:
        if self._is_up_to_date():  # as nearly always: then nobody has to wait for a writer
            return
        with self._engine.connect() as connection, _transaction(connection, self.is_sqlite):
            if not self.is_sqlite:  # two that make the same tables at once would both fail
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            there = sa.inspect(connection).has_table("meta")
            version = schema.SCHEMA_VERSION
            if there:
                key = sa.select(schema.meta.c.value).where(schema.meta.c.key == "schema")
                version = int(connection.scalar(key) or version)
            if version > schema.SCHEMA_VERSION:
                raise StoreError(
                    f"the journal has schema {version}; this tunefarm knows "
                    f"{schema.SCHEMA_VERSION}",
                    hint="Use the tunefarm that wrote it, or a newer one.",
                )
            schema.metadata.create_all(connection)
            for number in range(version, schema.SCHEMA_VERSION):
                _MIGRATIONS[number](connection)
            if not there or version < schema.SCHEMA_VERSION:
                connection.execute(sa.delete(schema.meta).where(schema.meta.c.key == "schema"))
                now = {"key": "schema", "value": str(schema.SCHEMA_VERSION)}
                connection.execute(sa.insert(schema.meta), [now])

    def _is_up_to_date(self) -> bool:
        key = sa.select(schema.meta.c.value).where(schema.meta.c.key == "schema")
        with self._engine.connect() as connection:
            there = set(sa.inspect(connection).get_table_names())
            if not there.issuperset(schema.metadata.tables):
                return False
            return bool(connection.scalar(key) == str(schema.SCHEMA_VERSION))


def _address(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StoreError(
            "the journal's address is none of a database's",
            hint="TUNEFARM_JOURNAL: postgresql+psycopg://USER@HOST/NAME; without it SQLite.",
        ) from error


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite database; None for any other."""
    parsed = _address(url)
    name = parsed.database
    if parsed.get_backend_name() != "sqlite" or not name or name == ":memory:":
        return None
    return Path(name)


class DamagedStore(StoreError):
    """The file of an SQLite journal is broken: see `salvage`."""


def _from_1(connection: sa.Connection) -> None:
    """Checksums for every fact, and the unit that measured it."""
    for name in ("measurements", "failures", "blocks"):
        _add_column(connection, name, "unit VARCHAR")
    for table in schema.metadata.sorted_tables:
        if "crc" in table.c and _add_column(connection, table.name, "crc VARCHAR"):
            _fill_checksums(connection, table)


def _add_column(connection: sa.Connection, table: str, column: str) -> bool:
    """Whether it was not there yet (a table that did not exist before has it)."""
    have = {c["name"] for c in sa.inspect(connection).get_columns(table)}
    if column.partition(" ")[0] in have:
        return False
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
    return True


def _fill_checksums(connection: sa.Connection, table: sa.Table) -> None:
    keys = list(table.primary_key.columns)
    found = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    update = (
        sa.update(table)
        .where(sa.and_(*(key == sa.bindparam(f"key_{key.name}") for key in keys)))
        .values(crc=sa.bindparam("new_crc"))
    )
    changes = [
        {"new_crc": schema.checksum(table, row), **{f"key_{k.name}": row[k.name] for k in keys}}
        for row in found
    ]
    if changes:
        connection.execute(update, changes)


def _from_2(connection: sa.Connection) -> None:
    """Numbers that mean something are parts of their facts; older facts are known as they are."""


def _from_3(connection: sa.Connection) -> None:
    """What candidates for GPUs take is on record: a table that is made where it is missing."""


_MIGRATIONS = {1: _from_1, 2: _from_2, 3: _from_3}
"""By the version that each begins with."""
_SCHEMA_LOCK = 7_483_652_109


@contextmanager
def _transaction(connection: sa.Connection, by_hand: bool) -> Iterator[None]:
    if not by_hand:
        with connection.begin():
            yield
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        # After some errors, a full disk's among them, SQLite has rolled back by itself.
        if connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
            connection.exec_driver_sql("ROLLBACK")
        raise


def _with_checksum(table: sa.Table, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "crc": schema.checksum(table, row)} if "crc" in table.c else dict(row)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.text_factory = lambda data: data.decode("utf-8", "replace")  # damaged, not fatal
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _is_damage(error: Exception) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True  # what SQLite complains of cannot even be written down
    said = reason(error)
    return any(
        w in said for w in ("malformed", "not a database", "no such table", "no such column")
    )


def reason(error: Exception) -> str:
    return str(getattr(error, "orig", error)).splitlines()[0]
