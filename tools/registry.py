"""The service registry (PM 2.6): who provides what, who may call it, and as whom."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, Self

from memoranda.ledger.authority import Caller
from memoranda.ledger.errors import Refusal, Refused, RefusedError

Domain = Literal["coding", "project", "personal"]

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", flags=re.ASCII)
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION = re.compile(
    r"(?P<major>0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    rf"(-{_IDENTIFIER}(\.{_IDENTIFIER})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    flags=re.ASCII,
)
"""Semantic versioning 2.0.0, as its authors spell it."""

_STAMPED = {
    "actor", "agentid", "authorizationid", "caller", "domain", "executionid", "executorsessionid",
    "itemid", "pluginid", "sessionid", "threadid", "turnid", "userspaceid",
}  # fmt: skip
"""What a payload may not carry, whatever the spelling: the host says who calls."""


class HostRefusal(Enum):
    """Why a host does not pass a call on, where no F-number of PM 2.4 says so."""

    code: str
    rule: str

    def __new__(cls, code: str, rule: str) -> Self:
        member = object.__new__(cls)
        member._value_ = rule
        member.code, member.rule = code, rule
        return member

    EXECUTION_NOT_FOUND = (
        "execution_not_found",
        "The call must belong to an execution that the host has begun and not ended.",
    )
    EXECUTION_CANCELLED = (
        "execution_cancelled",
        "The execution must not be cancelled; begin another one.",
    )
    SERVICE_NOT_DECLARED = (
        "service_not_authorized",
        "A plugin calls only services that it declares by name and major version.",
    )
    PREFLIGHT_ONLY_READS = (
        "service_not_authorized",
        "During preflight only reads run; write when the execution itself has begun.",
    )


@dataclass(frozen=True, slots=True)
class HostRefused:
    """A host's refusal with its place; on the wire it has the shape of a `Refused`."""

    refusal: HostRefusal
    field: str | None = None
    message: str | None = None

    @property
    def code(self) -> str:
        return self.refusal.code

    @property
    def rule(self) -> str:
        return self.refusal.rule

    def wire(self) -> dict[str, object]:
        """The error object of DESIGN 9; these have no number."""
        return {
            "code": self.refusal.code,
            "number": None,
            "rule": self.refusal.rule,
            "field": self.field,
            "message": self.message or self.refusal.rule,
        }


NotServed = Refused | HostRefused


@dataclass(frozen=True, slots=True)
class Session:
    """A tool session as the host vouches for it: its product domain, and who acts in it."""

    domain: Domain
    caller: Caller


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, as the host stamps it."""

    plugin_id: str
    execution_id: str
    session: Session


Payload = Mapping[str, object]
Method = Callable[[Call, Payload], object]


@dataclass(frozen=True, slots=True)
class Service:
    """What a plugin provides. Its `reads` run during preflight too, its `writes` only after."""

    name: str
    version: str
    reads: Mapping[str, Method] = field(default_factory=dict)
    writes: Mapping[str, Method] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        """Name and major version, `memory.records@1`; None when one of them is malformed."""
        version = _VERSION.fullmatch(self.version)
        is_named = version and _NAME.fullmatch(self.name)
        return f"{self.name}@{version['major']}" if version and is_named else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A service that a plugin declares; without a required one it does not run."""

    name: str
    major: int
    is_optional: bool = False

    @property
    def key(self) -> str | None:
        """As for a service."""
        return f"{self.name}@{self.major}" if _NAME.fullmatch(self.name) else None


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin by its declarations; `start` and `stop` are called as it is switched on and off."""

    plugin_id: str
    provides: tuple[Service, ...] = ()
    requires: tuple[Requirement, ...] = ()
    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a plugin, or one of its services, is left out."""

    plugin_id: str
    service: str | None
    fault: Literal["malformed", "duplicate", "provided_and_required", "provider_missing"]


@dataclass(frozen=True, slots=True)
class _Execution:
    session: Session
    is_preflight: bool
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class PluginHost:
    """What a plugin is handed for one execution: its way to the services it declared."""

    registry: "Registry"
    plugin_id: str
    execution_id: str

    def call(self, service: str, method: str, payload: Payload) -> object:
        """The provider's answer, or why there is none (`NotServed`)."""
        return self.registry.call(self, service, method, payload)


class Registry:
    """The plugins of one host. The first to provide a name and major version owns it."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._owners: dict[str, tuple[str, Service]] = {}
        self._faults: list[Diagnosis] = []
        self._disabled: set[str] = set()
        self._executions: dict[str, _Execution] = {}
        self._is_closed = False
        for plugin in plugins:
            self._install(plugin)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is wrong with the declarations, and which plugins wait for a provider."""
        running = self._running()
        missing = [
            Diagnosis(plugin.plugin_id, need.key, "provider_missing")
            for plugin in self._plugins.values()
            if plugin.plugin_id not in self._disabled
            for need in plugin.requires
            if not need.is_optional and self._provider(need.key, running) is None
        ]
        return (*self._faults, *missing)

    # -- switching --------------------------------------------------------------------------

    def enable(self, plugin_id: str) -> None:
        """Switches a plugin on again; plugins are on by default.

        This and `disable` raise RefusedError (F36) for a plugin that is not installed.
        """
        self._installed(plugin_id).start()
        self._disabled.discard(plugin_id)

    def disable(self, plugin_id: str) -> None:
        """Switches a plugin off: it is called no more from here on, and its data stay."""
        plugin = self._installed(plugin_id)
        self._disabled.add(plugin_id)
        plugin.stop()

    def _installed(self, plugin_id: object) -> Plugin:
        plugin = self._plugins.get(plugin_id) if isinstance(plugin_id, str) else None
        if plugin is None:
            raise _unknown("plugin_id")
        return plugin

    def close(self) -> None:
        """Stops every plugin, the last one first; nothing is served from here on."""
        self._is_closed = True
        for plugin in reversed(self._plugins.values()):
            plugin.stop()

    # -- executions -------------------------------------------------------------------------

    def begin(self, execution_id: str, session: Session, *, is_preflight: bool = False) -> None:
        """Makes an execution known, or takes one from its preflight into its run.

        An execution's id is a text; this, `cancel`, `end` and `host` raise RefusedError (F36) for
        another, and for what is no session.
        """
        _refuse_unless(str, execution_id=execution_id)
        _refuse_unless(Session, session=session)
        self._executions[execution_id] = _Execution(session, is_preflight)

    def cancel(self, execution_id: str) -> None:
        """Serves the execution no more; it stays known until it ends."""
        _refuse_unless(str, execution_id=execution_id)
        if execution := self._executions.get(execution_id):
            self._executions[execution_id] = replace(execution, is_cancelled=True)

    def end(self, execution_id: str) -> None:
        _refuse_unless(str, execution_id=execution_id)
        self._executions.pop(execution_id, None)

    def host(self, plugin_id: str, execution_id: str) -> PluginHost:
        """The host as that plugin sees it in that execution."""
        _refuse_unless(str, plugin_id=plugin_id, execution_id=execution_id)
        return PluginHost(self, plugin_id, execution_id)

    # -- calls ------------------------------------------------------------------------------

    def call(self, host: PluginHost, service: object, method: object, payload: Payload) -> object:
        """Passes a call on under the identity that the host knows, or says why not."""
        execution = self._execution(host.execution_id)
        if not isinstance(execution, _Execution):
            return execution
        offered = self._offered(host.plugin_id, service)
        if not isinstance(offered, Service):
            return offered
        methods = {**offered.writes, **offered.reads}
        if not isinstance(method, str) or method not in methods:
            return Refused(Refusal.INVALID_REQUEST, "method", "the service has no such method")
        if refused := _payload_refusal(payload):
            return refused
        if execution.is_preflight and method not in offered.reads:
            return HostRefused(HostRefusal.PREFLIGHT_ONLY_READS, "method")
        return methods[method](Call(host.plugin_id, host.execution_id, execution.session), payload)

    def _execution(self, execution_id: str) -> _Execution | NotServed:
        if self._is_closed:
            return Refused(Refusal.SERVICE_UNAVAILABLE, message="the host is shut down")
        execution = self._executions.get(execution_id)
        if execution is None:
            return HostRefused(HostRefusal.EXECUTION_NOT_FOUND)
        if execution.is_cancelled:
            return HostRefused(HostRefusal.EXECUTION_CANCELLED)
        return execution

    def _offered(self, plugin_id: str, service: object) -> Service | NotServed:
        plugin = self._plugins.get(plugin_id)
        declared = {need.key for need in plugin.requires} if plugin else set()
        if not isinstance(service, str) or service not in declared:
            return HostRefused(HostRefusal.SERVICE_NOT_DECLARED, "service")
        running = self._running()
        if plugin_id not in running:
            message = "the plugin is switched off, or a provider it requires is missing"
            return Refused(Refusal.SERVICE_UNAVAILABLE, "plugin", message)
        provided = self._provider(service, running)
        return provided or Refused(Refusal.SERVICE_UNAVAILABLE, "service", "has no provider")

    # -- declarations -----------------------------------------------------------------------

    def _install(self, plugin: Plugin) -> None:
        """Takes a plugin whose declarations are sound; of those, each service nobody owns."""
        faults = list(_faults(plugin, set(self._plugins)))
        self._faults += faults
        if faults:
            return
        self._plugins[plugin.plugin_id] = plugin
        for service in plugin.provides:
            key = service.key
            assert key is not None, "a malformed name is a fault"
            if key in self._owners:
                self._faults.append(Diagnosis(plugin.plugin_id, key, "duplicate"))
            else:
                self._owners[key] = (plugin.plugin_id, service)

    def _running(self) -> set[str]:
        """Who is switched on and has every required provider, which must be running as well."""
        running = set(self._plugins) - self._disabled
        while blocked := {name for name in running if not self._is_complete(name, running)}:
            running -= blocked
        return running

    def _is_complete(self, plugin_id: str, running: set[str]) -> bool:
        return all(
            need.is_optional or self._provider(need.key, running) is not None
            for need in self._plugins[plugin_id].requires
        )

    def _provider(self, key: str | None, running: set[str]) -> Service | None:
        owner, service = self._owners.get(key or "", ("", None))
        return service if owner in running else None


def _faults(plugin: Plugin, known: set[str]) -> Iterator[Diagnosis]:
    """What keeps a plugin from being installed at all."""
    if plugin.plugin_id in known:
        yield Diagnosis(plugin.plugin_id, None, "duplicate")
    declarations: tuple[Service | Requirement, ...] = (*plugin.provides, *plugin.requires)
    for declared in declarations:
        if declared.key is None:
            yield Diagnosis(plugin.plugin_id, declared.name, "malformed")
    provided = {service.name for service in plugin.provides}
    for name in sorted(provided & {need.name for need in plugin.requires}):
        yield Diagnosis(plugin.plugin_id, name, "provided_and_required")


def _refuse_unless(shape: type, **given: object) -> None:
    for name, it in given.items():
        if not isinstance(it, shape):
            raise _unknown(name)


def _unknown(name: str) -> RefusedError:
    return RefusedError(Refused(Refusal.INVALID_REQUEST, name, "is none that a host knows"))


def _payload_refusal(payload: object) -> Refused | None:
    """F36 for what names no parameters, or says what only the host may say."""
    if not isinstance(payload, Mapping):
        return Refused(Refusal.INVALID_REQUEST, "payload", "is no mapping of parameters")
    names = tuple(payload)
    if not all(isinstance(name, str) for name in names):
        return Refused(Refusal.INVALID_REQUEST, "payload", "names its parameters in text")
    stamped = (name for name in names if name.replace("_", "").casefold() in _STAMPED)
    name = next(stamped, None)
    message = "is said by the host; leave it out"
    return None if name is None else Refused(Refusal.INVALID_REQUEST, name, message)
