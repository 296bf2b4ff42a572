"""The front door: the one place where the parts of a ledger meet."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.backups import BackupReport, Backups, sweep
from memoranda.ledger.capturing import admitted_caller
from memoranda.ledger.commit_protocol import CommitProtocol
from memoranda.ledger.ending import SpaceEnded
from memoranda.ledger.errors import Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.forgetting import Forgetting, Purge
from memoranda.ledger.hosting import Host
from memoranda.ledger.log import Log
from memoranda.ledger.migration import Migration
from memoranda.ledger.operations import Ledger
from memoranda.ledger.places import Place
from memoranda.ledger.ports import EMBEDDED, Ports
from memoranda.ledger.protection import attached
from memoranda.ledger.reconcile import Reconcile
from memoranda.ledger.recovery_code import CODE_BYTES, code_of, read_code
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.sweeping import Sweep
from memoranda.ledger.takeover import MigrationReport
from memoranda.ledger.vaults import KeyVault, Passphrase, Unlocking, refuse_odd_keys
from memoranda.projections.audit import Audit
from memoranda.projections.evidence import Evidence
from memoranda.projections.exporting import Export
from memoranda.projections.falling import Falling
from memoranda.projections.feed import purge, rebuild
from memoranda.projections.history import History
from memoranda.projections.postings import SearchView
from memoranda.projections.query import Query
from memoranda.projections.recall import Recall
from memoranda.projections.records import Records, RecordsView
from memoranda.projections.remnants import Remnants
from memoranda.projections.search import Search
from memoranda.projections.story import Story
from memoranda.projections.unfinished import Unfinished
from memoranda.projections.views import VIEWS, View, ViewFile
from memoranda.tools.exporting import Exporting, ExportReport, Format
from memoranda.tools.exporting import sweep as sweep_exports
from memoranda.tools.parts import Parts
from memoranda.tools.passphrases import passphrase_in
from memoranda.tools.reading import Reading
from memoranda.tools.settings import Settings, load_settings
from memoranda.tools.system_keyring import SystemKeyring
from memoranda.tools.writing import Writing

HOUR_US = 3_600_000_000


class Memory(Writing, Reading):
    """One person's memory, as one caller sees it; `acting_as` gives the same to another.

    Verbs answer with a receipt or a `Refused`; reads with a value or a `Refused`. Operation ids
    are fresh unless given; give one to make a retry harmless.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; what was answered is durable already. Closing twice is harmless."""
        if not self._parts.log.is_closed:
            parts = self._parts
            with ExitStack() as closing:
                closing.callback(parts.log.close)
                closing.callback(parts.views.close)
                parts.ledger.close()
                self._finish_forgets()

    def _finish_forgets(self) -> None:
        # What cannot be finished now, without a wait, is finished by the next opening.
        with suppress(StorageFault, RefusedError):
            if self._parts.forgetting.is_owed:
                with self._parts.log.exclusive(wait_s=0):
                    pass
                self._parts.forgetting.finish(is_urgent=True)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nobody else commits until it is left, so what was read still holds for what follows.

        Everybody waits meanwhile, this thread's verbs aside: keep it to a read and a command.
        """
        with self._parts.log.exclusive():
            yield

    def acting_as(self, caller: Caller) -> "Memory":
        """The same open ledger for another caller, whose identity the host vouches for.

        Raises RefusedError (F36, F32) for an identity that is malformed or too long.
        """
        admitted = admitted_caller(caller)
        if isinstance(admitted, Refused):
            raise RefusedError(admitted)
        return Memory(self._parts, admitted)

    @property
    def host(self) -> Host:
        """The host's side: conversations, the primary session, tasks, authorizations."""
        return self._parts.host

    @property
    def audit(self) -> Audit:
        return self._parts.audit

    @property
    def data_set(self) -> str:
        """Names the ledger's data: a provider of documents may only be replaced by its equal."""
        return self._parts.log.data_set

    @property
    def is_serving(self) -> bool:
        """Whether it still answers; after a durable write that failed it must be opened again."""
        return self._parts.log.is_serving

    @property
    def recovery_code(self) -> str | None:
        """The recovery code for the person, if this opening created the space; only this once."""
        return self._parts.log.recovery_code if isinstance(self.caller, PersonClient) else None

    @property
    def taken_over(self) -> MigrationReport | None:
        """What became of the earlier store's lines, if this opening took it over."""
        return self._parts.taken_over

    def rebuild(self) -> int:
        """Computes every view from the first event; how many events there were.

        Raises RefusedError (F2) for anybody but the person.
        """
        self._refuse_others()
        parts = self._parts
        return rebuild(parts.log, parts.views, *parts.checked)

    def forget_space(self, space: str) -> SpaceEnded | Refused:
        """Ends the whole space for good: every body, every key, every key bundle in reach.

        `space` repeats its name. The ledger is closed afterwards, and its name refused until
        another is begun in its place; the chain of what was stays, and verifies without keys.
        """
        parts = self._parts
        if not isinstance(self.caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        if space != parts.log.space:
            message = "must repeat the name of the space that is to end"
            return Refused(Refusal.INVALID_REQUEST, "space", message)
        parts.ledger.close()
        parts.views.close()
        return parts.log.forget_space()

    # -- copies -----------------------------------------------------------------------------

    def backup(self, folder: Path | str, *, keep: int | None = None) -> BackupReport | Refused:
        """A verified copy of the log in a folder elsewhere, and the present key bundle.

        `keep` is how many copies of the log the folder keeps from now on.
        """
        return self._parts.backups.make(self.caller, folder, keep)

    def copy_is_gone(self, path: Path | str) -> tuple[str, ...] | Refused:
        """Says that a backup folder or an export is gone: no forget names it from here on.

        Refused while it can be seen there. The answer is which copies are left on the list.
        """
        return self._parts.backups.strike(self.caller, path)

    def export(
        self, path: Path | str, *, form: Format = "jsonl", replace: bool = False
    ) -> ExportReport | Refused:
        """A readable file of everything that the person may read now; nobody else exports."""
        exporting = Exporting(self._parts.log, self._parts.export)
        return exporting.write(self.caller, path, form=form, replace=replace)

    def import_file(self, path: Path | str, *, dry_run: bool = False) -> MigrationReport | Refused:
        """Takes in what an export holds and the log does not; tombstones win."""
        return self.migrate(path, dry_run=dry_run)

    # -- keys, the person's alone: who has a recovery code reads every backup --------------------

    def rotate_keys(self) -> int:
        """A new wrapping key for every data key; the old one is destroyed. The new key epoch.

        This and the recovery code raise RefusedError (F2) for anybody but the person.
        """
        self._refuse_others()
        return self._parts.log.rotate_keys()

    def set_passphrase(self, passphrase: str | None) -> int | Refused:
        """Puts the wrapping key under another passphrase, or under none; the new key epoch.

        Other processes that have the ledger open must open it again with the new one.
        """
        try:
            self._refuse_others()
            return self._parts.log.set_passphrase(passphrase)
        except RefusedError as error:
            return error.refused

    def move_keys(self, vault: str) -> int | Refused:
        """Moves the wrapping key to `slots` or another vault; the new key epoch.

        A passphrase does not move along. The setting `vault` must name the new one from then on.
        """
        try:
            self._refuse_others()
            return self._parts.log.move_keys(vault)
        except RefusedError as error:
            return error.refused

    def make_recovery_code(self) -> str:
        """A new recovery code, kept nowhere; the one before is in force until this one is set.

        Show it first, and set it once it was seen: no kill between leaves one that nobody knows.
        """
        self._refuse_others()
        self._parts.log.refuse_if_closed()
        return code_of(self._parts.stamps.entropy(CODE_BYTES))

    def set_recovery_code(self, code: str) -> None:
        """Puts a code that was made and shown in force; the one before opens no later copy.

        Raises RefusedError (F36) for what is no code.
        """
        self._refuse_others()
        raw = read_code(code)
        if raw is None:
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "code", "is no recovery code"))
        self._parts.log.set_recovery_code(raw)

    def is_recovery_code(self, code: str) -> bool:
        """Whether `code` is the recovery code in force."""
        self._refuse_others()
        return self._parts.log.is_recovery_code(code)


def open_memory(
    space: str | None = None,
    *,
    data: Path | str | None = None,
    state: Path | str | None = None,
    create: bool = True,
    stamps: Stamps | None = None,
    ports: Ports = EMBEDDED,
    passphrase: Passphrase = None,
    key_vault: KeyVault | None = None,
    **settings: object,
) -> Memory:
    """Opens one person's memory as the person's own client; creates it when it is new.

    `ports` are the providers of a host that owns conversations, tasks or authorizations. A
    `passphrase` may be a callable, asked when the ledger needs one; a new ledger is put under one
    that is a text. `key_vault` is a host's own place for the wrapping key. What is not given comes
    from `MEMORANDA_…` variables, `config.toml`, then the defaults. Raises RefusedError when the
    ledger cannot be opened, with the rule and the place.
    """
    return assemble(
        load_settings(space=space, data=data, state=state, **settings),
        stamps or Stamps(),
        create=create,
        ports=ports,
        passphrase=passphrase,
        key_vault=key_vault,
    )


def place_of(settings: Settings) -> Place:
    """Where the settings say that the ledger lives."""
    roots = settings.data.expanduser(), settings.state.expanduser()
    return Place.of(settings.space, *roots, settings.engine)


def assemble(
    settings: Settings,
    stamps: Stamps,
    *,
    create: bool,
    ports: Ports = EMBEDDED,
    passphrase: Passphrase = None,
    key_vault: KeyVault | None = None,
    is_restoring: bool = False,
) -> Memory:
    """Puts the parts of one ledger together."""
    ports = attached(ports)
    unlocking = unlocking_of(settings, passphrase, key_vault)
    place = replace(place_of(settings), is_restoring=is_restoring)
    with ExitStack() as opened:
        log = Log(place, stamps, create=create, host=settings.host, unlocking=unlocking)
        opened.callback(log.close)
        sweep(place.data)
        views = ViewFile(place.data / VIEWS, place.space)
        opened.callback(views.close)
        index = SearchView(log.index_key)
        checked: tuple[View, ...] = (RecordsView(), index)
        forgetting = Forgetting(log, stamps, _purges(log, views, checked))
        window_us = settings.forget_window_hours * HOUR_US
        protocol = CommitProtocol(log, stamps, ports, forgetting, forget_window=window_us)
        forgetting.take_up()
        migration = Migration(log, stamps, settings.secrets)
        ledger = Ledger(log, stamps, protocol, settings.secrets)
        parts = Parts(
            log=log,
            views=views,
            ledger=ledger,
            sweep=Sweep(log, ledger, forgetting),
            falling=Falling(log, views),
            reconcile=Reconcile(log, stamps, protocol, ports),
            forgetting=forgetting,
            host=Host(log, stamps, settings.secrets, ports.data_sets),
            migration=migration,
            taken_over=_taken_over(migration, settings),
            backups=Backups(log, stamps),
            export=Export(log, views, stamps),
            history=History(log, stamps),
            evidence=Evidence(log, stamps),
            records=Records(log, views, stamps),
            audit=Audit(log, views, [RecordsView()], index),
            story=Story(log),
            recall=Recall(log, views, stamps),
            search=Search(log, views, stamps),
            query=Query(log, views, stamps),
            remnants=Remnants(log, place, views, index),
            unfinished=Unfinished(log, views, stamps),
            checked=checked,
            stamps=stamps,
        )
        opened.pop_all()
    return Memory(parts, PersonClient())


def _purges(log: Log, views: ViewFile, checked: Sequence[View]) -> tuple[Purge, ...]:
    """What a forget takes away beside the log and its keys."""
    restores, exports = partial(sweep, log.place.data), partial(sweep_exports, log)
    return partial(purge, log, views, *checked), restores, exports


def _taken_over(migration: Migration, settings: Settings) -> MigrationReport | None:
    """What the earlier store gave that the settings name, if they name one."""
    if settings.legacy is None:
        return None
    return migration.ensure(PersonClient(), settings.legacy.expanduser())


def unlocking_of(
    settings: Settings, passphrase: Passphrase, key_vault: KeyVault | None
) -> Unlocking:
    """How an opening under these settings gets at the wrapping key; refuses what no one can use."""
    refuse_odd_keys(passphrase, key_vault)
    if settings.passphrase_file is not None and not isinstance(passphrase, str):
        passphrase = passphrase_in(settings.passphrase_file.expanduser())
    vaults: tuple[KeyVault, ...] = (SystemKeyring(), *([] if key_vault is None else [key_vault]))
    vault = settings.vault if key_vault is None else key_vault.name
    return Unlocking(vault, {it.name: it for it in vaults}, passphrase)
