"""Convert the settings to objects of the domain."""

from __future__ import annotations

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.accounting.breakdown import Prices
from orchestrator.domain.accounting.retention import Retention
from orchestrator.domain.queueing.admission import Limits, Quota
from orchestrator.settings import Settings
from orchestrator.webhooks.outbox import Endpoint
from orchestrator.wire.webhook_views import WebhookView


def ports_of(settings: Settings) -> range:
    """Return the rendezvous ports."""
    low, high = settings.rendezvous_ports
    return range(low, high + 1)


def limits_of(settings: Settings) -> Limits:
    """Return the limits that apply to every cluster."""
    quotas = {
        name: Quota(max_jobs=project.max_jobs, max_devices=project.max_devices)
        for name, project in settings.projects.items()
    }
    return Limits(quotas=quotas)


def retention_of(settings: Settings) -> Retention:
    given = settings.retention.model_dump()
    return Retention(**{name: None if days == "never" else days for name, days in given.items()})


def prices_of(settings: Settings) -> Prices | None:
    given = settings.prices
    if given is None:
        return None
    return Prices(currency=given.currency, device_hour=given.device_hour, clusters=given.clusters)


def endpoints_of(settings: Settings) -> list[Endpoint]:
    """Return the configured webhooks. Raises ConfigurationError for a missing secret."""
    return [
        Endpoint(webhook=Webhook(name=name, events=one.events, all_jobs=one.all_jobs), url=one.url, key=one.read_key())
        for name, one in sorted(settings.webhooks.items())
    ]


def webhook_views_of(settings: Settings) -> list[WebhookView]:
    return [
        WebhookView(name=name, host=one.host, events=list(one.events), all_jobs=one.all_jobs)
        for name, one in sorted(settings.webhooks.items())
    ]
