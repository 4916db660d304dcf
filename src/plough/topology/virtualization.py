"""Hints about what stands between this process and the metal: a hypervisor, a container.

They are for people to read (`plough probe`, `plough doctor`). No limit is ever derived from them, so that a
wrong hint is only a wrong word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from plough.topology._sysfs import Tree
from plough.topology.cgroup import cgroup_paths
from plough.topology.cpuinfo import CpuInfo

__all__ = ["find_container", "find_hypervisor"]

# What the firmware calls itself (vendor and product name, lower case) -> the hypervisor beneath.
_FIRMWARE = (
    ("vmware", "vmware"),
    ("virtualbox", "virtualbox"),
    ("innotek", "virtualbox"),
    ("parallels", "parallels"),
    ("xen", "xen"),
    ("microsoft corporation virtual machine", "hyperv"),
    ("apple virtualization", "apple"),
    ("nutanix", "kvm"),
    ("qemu", "kvm"),
    ("kvm", "kvm"),
    ("amazon ec2", "kvm"),  # Nitro; the older Xen instances have /sys/hypervisor/type
    ("google", "kvm"),
    ("alibaba cloud", "kvm"),
    ("openstack", "kvm"),
    ("digitalocean", "kvm"),
    ("hetzner vserver", "kvm"),
)
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv", "hyperv"), ("xen", "xen"))

# Order matters: a pod's containers are also docker's or containerd's, and kind runs pods inside docker.
_CGROUP_HINTS = (
    ("kubernetes", re.compile(r"/kubepods[./-]|/kubepods$|/kubelet/")),
    ("podman", re.compile(r"/libpod-|libpod_parent|/podman-")),
    ("docker", re.compile(r"/docker/|/docker-[0-9a-f]{12,}")),
    ("lxc", re.compile(r"/lxc/|/lxc\.payload|/lxc\.monitor")),
)


def find_hypervisor(tree: Tree, info: CpuInfo) -> str | None:
    """ "kvm", "xen", "vmware", "hyperv", ..., "vm" for one that hides its name; None for bare metal."""
    declared = tree.text("/sys/hypervisor/type")
    if declared:
        return declared.split()[0]
    # An x86 hypervisor says that it is one; firmware names alone would take Amazon's *.metal for guests.
    x86 = info.first("flags") is not None
    if x86 and "hypervisor" not in info.flags:
        return None
    return _by_firmware(tree) or _by_device_tree(tree) or (_by_clock(tree) or "vm" if x86 else None)


def _by_firmware(tree: Tree) -> str | None:
    names = (tree.text(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name"))
    firmware = " ".join(names).lower()
    if ".metal" in firmware:
        return None
    return next((name for part, name in _FIRMWARE if part in firmware), None)


def _by_device_tree(tree: Tree) -> str | None:
    compatible = tree.text("/sys/firmware/devicetree/base/hypervisor/compatible") or ""
    return next((name for name in ("kvm", "xen") if name in compatible), None)


def _by_clock(tree: Tree) -> str | None:
    clocks = tree.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    return next((name for part, name in _CLOCKS if part in clocks), None)


def find_container(tree: Tree, environ: Mapping[str, str]) -> str | None:
    """ "kubernetes", "podman", "docker", "lxc", "apptainer", ...; None when nothing hints at one.

    environ: of the calling process; empty for a captured tree.
    """
    if "KUBERNETES_SERVICE_HOST" in environ or tree.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    paths = cgroup_paths(tree).values()
    hinted = next((name for name, hint in _CGROUP_HINTS if any(map(hint.search, paths))), None)
    if hinted == "kubernetes":
        return hinted
    if tree.exists("/run/.containerenv"):
        return "podman"
    if tree.exists("/.singularity.d"):
        return "apptainer"
    if tree.exists("/.dockerenv"):
        return "docker"
    # systemd's convention: whoever makes a container names itself in $container
    return hinted or environ.get("container") or None
