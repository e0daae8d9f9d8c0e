"""Notification channels of Cloud Monitoring: addresses to which Google sends e-mail."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi
import pulumi_gcp as gcp

_EMAIL = "email"


def email_channels(
    project: str, name: str, addresses: Iterable[str], opts: pulumi.ResourceOptions
) -> list[pulumi.Output[str]]:
    """Declare a channel for each address; return their full names.

    `name` is shown before the address.
    """
    return [
        gcp.monitoring.NotificationChannel(
            address,
            project=project,
            type=_EMAIL,
            display_name=f"{name}: {address}",
            labels={"email_address": address},
            opts=opts,
        ).name
        for address in addresses
    ]
