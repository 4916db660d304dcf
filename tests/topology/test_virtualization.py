"""Hints about hypervisors and containers."""

from __future__ import annotations

import pytest

from plough.topology.cpuinfo import read_cpuinfo
from plough.topology.virtualization import find_container, find_hypervisor
from tests.topology.conftest import LayOut

GUEST = {"/proc/cpuinfo": "processor : 0\nflags : lm hypervisor\n"}
METAL = {"/proc/cpuinfo": "processor : 0\nflags : lm\n"}
ARM = {"/proc/cpuinfo": "processor : 0\nFeatures : asimd\n"}
CLOCKS = "/sys/devices/system/clocksource/clocksource0/available_clocksource"


def dmi(vendor: str, product: str) -> dict[str, str]:
    return {"/sys/class/dmi/id/sys_vendor": f"{vendor}\n", "/sys/class/dmi/id/product_name": f"{product}\n"}


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        (METAL | dmi("Dell Inc.", "PowerEdge R750"), None),
        (METAL | dmi("Amazon EC2", "c6i.metal"), None),
        (METAL | dmi("Google", "Google Compute Engine"), None),
        (GUEST | dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)"), "kvm"),
        (GUEST | dmi("Amazon EC2", "c7i.24xlarge"), "kvm"),
        (GUEST | dmi("Google", "Google Compute Engine"), "kvm"),
        (GUEST | dmi("Microsoft Corporation", "Virtual Machine"), "hyperv"),
        (GUEST | dmi("VMware, Inc.", "VMware7,1"), "vmware"),
        (GUEST | dmi("innotek GmbH", "VirtualBox"), "virtualbox"),
        (GUEST | {CLOCKS: "tsc kvm-clock \n"}, "kvm"),
        (GUEST | {CLOCKS: "hyperv_clocksource_tsc_page acpi_pm \n"}, "hyperv"),
        (GUEST | {CLOCKS: "tsc\n"}, "vm"),
        (GUEST, "vm"),
        (GUEST | {"/sys/hypervisor/type": "xen\n"}, "xen"),
        (GUEST | {"/sys/hypervisor/type": "\n"}, "vm"),
        (ARM | dmi("Amazon EC2", "c7g.metal"), None),
        (ARM | dmi("Amazon EC2", "c7g.4xlarge"), "kvm"),
        (ARM | {"/sys/firmware/devicetree/base/hypervisor/compatible": "linux,kvm\0"}, "kvm"),
        (ARM, None),
        ({}, None),
    ],
)
def test_hypervisor(lay_out: LayOut, files: dict[str, str], hypervisor: str | None) -> None:
    tree = lay_out(files)
    assert find_hypervisor(tree, read_cpuinfo(tree)) == hypervisor


def cgroup(path: str) -> dict[str, str]:
    return {"/proc/self/cgroup": f"1:name=systemd:/\n0::{path}\n"}


@pytest.mark.parametrize(
    ("files", "environ", "container"),
    [
        ({}, {}, None),
        (cgroup("/user.slice/user-1000.slice/session-3.scope"), {}, None),
        (cgroup("/system.slice/docker.service"), {}, None),
        (cgroup("/docker/0123456789abcdef"), {}, "docker"),
        (cgroup("/system.slice/docker-0123456789abcdef.scope"), {}, "docker"),
        (cgroup("/machine.slice/libpod-0123.scope"), {}, "podman"),
        (cgroup("/lxc.payload.web/system.slice"), {}, "lxc"),
        (cgroup("/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope"), {}, "kubernetes"),
        (cgroup("/docker/0123456789ab/kubelet/kubepods/pod1/c1"), {}, "kubernetes"),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/.dockerenv": "", "/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/var/run/secrets/kubernetes.io/serviceaccount/": "", "/.dockerenv": ""}, {}, "kubernetes"),
        ({"/.singularity.d/": ""}, {}, "apptainer"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({}, {"container": ""}, None),
    ],
)
def test_container(
    lay_out: LayOut, files: dict[str, str], environ: dict[str, str], container: str | None
) -> None:
    assert find_container(lay_out(files), environ) == container
