"""Webhooks that are created and removed while the service runs, besides those of the settings.

The service that handles the request knows of a change at once, the other services on its database within seconds.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import structlog

from orchestrator.domain.access.identity import Principal
from orchestrator.domain.access.url_policy import why_out_of_bounds
from orchestrator.domain.access.webhook import SECRET_PREFIX, Webhook, parse_key, why_no_endpoint
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec, NotFound, StoreUnavailable
from orchestrator.identity.short_memory import ShortMemory
from orchestrator.identity.vault import Vault
from orchestrator.ports.clock import Clock
from orchestrator.store.records import StoredWebhook
from orchestrator.store.webhook_store import WebhookStore
from orchestrator.webhooks.outbox import Endpoint
from orchestrator.wire.webhook_views import NewWebhookView, WebhookRequest, WebhookView

log = structlog.get_logger()

_KEEP_S = 5.0  # how late a change by another service is noticed here
_KEY_BYTES = 24
_ALL = "all"
_PROXIED = (
    "would be reached through the proxy of the service's environment, which looks up the address itself, so that it "
    "cannot be checked; add the webhook to the service's settings, or its host to NO_PROXY if no proxy is needed"
)


class Hooks(Collection[str]):
    """The names of all webhooks, with methods to create and remove one. Every method raises StoreUnavailable.

    `configured` are the webhooks of the settings, which cannot be changed here. `subscribe` receives all webhooks after
    each change. `is_proxied` says whether a URL is reached through a proxy.
    """

    def __init__(
        self,
        store: WebhookStore,
        vault: Vault,
        clock: Clock,
        *,
        configured: Sequence[Webhook] = (),
        private_hosts: Collection[str] = (),
        subscribe: Callable[[Sequence[Webhook]], None] = lambda _: None,
        is_proxied: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        self._configured = {hook.name: hook for hook in configured}
        self._private_hosts = private_hosts
        self._subscribe = subscribe
        self._is_proxied = is_proxied
        self._memory: ShortMemory[Sequence[StoredWebhook]] = ShortMemory(_KEEP_S)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def create(self, request: WebhookRequest, *, by: Principal) -> NewWebhookView:
        """Raises InvalidSpec, Conflict."""
        self._require_endpoint(request.url)
        drawn = f"{SECRET_PREFIX}{b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"
        secret = drawn if request.secret is None else request.secret.get_secret_value()
        try:
            parse_key(secret)
        except ValueError as error:
            raise InvalidSpec([FieldProblem("/secret", str(error))]) from None
        webhook = Webhook(name=request.name, events=tuple(request.events), all_jobs=request.all_jobs)
        stored = StoredWebhook(
            webhook=webhook,
            host=urlsplit(request.url).netloc,
            sealed=self._vault.seal(_purpose(request.name), json.dumps({"url": request.url, "secret": secret})),
            created_at=self._clock.now(),
            created_by=by.name,
        )
        if request.name in self._configured or not self._store.add(stored):
            raise Conflict(f"a webhook {request.name} exists already; remove it, or choose another name")
        log.info("webhook created", webhook=request.name, host=stored.host, by=by.name)
        self.refresh()
        return NewWebhookView(**_view(stored).model_dump(), secret=secret)

    def remove(self, name: str, *, by: Principal) -> None:
        """Raises NotFound, Conflict."""
        if name in self._configured:
            raise Conflict(f"webhook {name} is from the service's settings; remove it there")
        if not self._store.remove(name):
            raise NotFound(f"there is no webhook {name}")
        log.info("webhook removed", webhook=name, by=by.name)
        self.refresh()

    def views(self) -> list[WebhookView]:
        """Return the webhooks that were created by request."""
        return [_view(stored) for stored in self._stored_webhooks()]

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints of the webhooks that were created by request. One that cannot be unsealed is logged and
        left out."""
        found = []
        for stored in self.refresh():
            try:
                opened = json.loads(self._vault.unseal(_purpose(stored.webhook.name), stored.sealed))
            except StoreUnavailable as error:
                log.warning("webhook cannot be used", webhook=stored.webhook.name, reason=str(error))
                continue
            url, key, inside = opened["url"], parse_key(opened["secret"]), tuple(self._private_hosts)
            found.append(Endpoint(webhook=stored.webhook, url=url, key=key, inside=inside))
        return found

    def refresh(self) -> Sequence[StoredWebhook]:
        """Read the webhooks again, and subscribe all of them to later events."""
        made = self._memory.keep(_ALL, self._store.all())
        self._subscribe([*self._configured.values(), *(each.webhook for each in made)])
        return made

    def reseal(self) -> None:
        """Seal all webhooks again with the first key."""
        for stored in self._store.all():
            purpose = _purpose(stored.webhook.name)
            new = self._vault.seal(purpose, self._vault.unseal(purpose, stored.sealed))
            self._store.seal_anew(stored.webhook.name, old=stored.sealed, new=new)

    def _require_endpoint(self, url: str) -> None:
        reason = why_no_endpoint(url) or why_out_of_bounds(url, self._private_hosts)
        if reason is None and self._is_proxied(url):
            reason = _PROXIED
        if reason is not None:
            raise InvalidSpec([FieldProblem("/url", reason)])

    def _stored_webhooks(self) -> Sequence[StoredWebhook]:
        known = self._memory.recall(_ALL)
        return self.refresh() if known is None else known.value

    def _names(self) -> set[str]:
        return {*self._configured, *(stored.webhook.name for stored in self._stored_webhooks())}


def is_proxied(url: str) -> bool:
    """Whether a variable such as HTTPS_PROXY applies to a URL, and NO_PROXY does not."""
    parts = urlsplit(url)
    return bool({parts.scheme, "all"} & getproxies().keys()) and not proxy_bypass(parts.hostname or "")


def _purpose(name: str) -> str:
    return f"webhook {name}"


def _view(stored: StoredWebhook) -> WebhookView:
    hook = stored.webhook
    return WebhookView(name=hook.name, host=stored.host, events=list(hook.events), all_jobs=hook.all_jobs)
