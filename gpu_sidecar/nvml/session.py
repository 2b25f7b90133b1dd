"""One epoch of the driver: initialised once, its devices enumerated and probed, its Xid events awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_sidecar.errors import SidecarError
from gpu_sidecar.nvml.device import Device
from gpu_sidecar.nvml.errors import ACTIONS, Action, DeviceLost, NvmlFault, code_of
from gpu_sidecar.nvml.errors import NAMES as ERROR_NAMES
from gpu_sidecar.nvml.gpm import GPM_INTERVAL_NS
from gpu_sidecar.sample import Event, Sample
from gpu_sidecar.timebase import Clock

XID_CLASS: dict[int, str] = dict.fromkeys((13, 31, 43, 45), "app") | dict.fromkeys(
    (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120), "hardware"
)
"""What an Xid usually accuses; any other is ``unknown``. A row of the log, never a verdict on the device."""


def load_nvml() -> Any:
    """The binding, checked. Raises :class:`SidecarError` where it is absent or another package of that
    name."""
    try:
        import pynvml
    except ImportError as error:
        raise SidecarError(f"nvidia-ml-py is not installed ({error})") from error
    return checked(pynvml)


def checked(nvml: Any) -> Any:
    """*nvml* itself, unless it is the unrelated package that also calls itself pynvml."""
    if not hasattr(nvml, "_nvmlGetFunctionPointer"):
        raise SidecarError(
            "the installed pynvml is not NVIDIA's nvidia-ml-py (no _nvmlGetFunctionPointer): "
            "pip uninstall pynvml; pip install nvidia-ml-py"
        )
    return nvml


def text(value: str | bytes) -> str:
    """NVML strings: bytes in old bindings, str in new ones."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Session:
    """The devices between one ``nvmlInit`` and its ``nvmlShutdown``."""

    def __init__(self, nvml: Any, clock: Clock, gpm_interval_ns: int = GPM_INTERVAL_NS) -> None:
        self._nvml = nvml
        self._gpm_interval_ns = gpm_interval_ns
        self._clock = clock
        self.devices: list[Device] = []
        self.lost: dict[str, str] = {}
        self.driver: dict[str, str] = {}
        self._event_set: Any = None

    def open(self) -> None:
        """Initialise, enumerate, probe.

        Raises :class:`DeviceLost` when the driver does not answer, or when no device is left; single devices
        that fail are put into ``lost`` (uuid or index -> reason) and the others serve.
        """
        try:
            self._nvml.nvmlInit()
            self.driver = {
                "driver": text(self._nvml.nvmlSystemGetDriverVersion()),
                "nvml": text(self._nvml.nvmlSystemGetNVMLVersion()),
            }
            count = int(self._nvml.nvmlDeviceGetCount())
        except (self._nvml.NVMLError, NvmlFault) as error:
            raise DeviceLost(_name(error)) from error
        for index in range(count):
            try:
                self._add(index)
            except (self._nvml.NVMLError, NvmlFault) as error:
                self.lost[f"index {index}"] = _name(error)
            except DeviceLost as error:
                self.lost[f"index {index}"] = error.reason
        if not self.devices:
            reasons = "; ".join(f"{where}: {why}" for where, why in self.lost.items())
            raise DeviceLost(reasons or "the driver reports no device")
        self._register_events()

    def _add(self, index: int) -> None:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        info = {
            "uuid": text(self._nvml.nvmlDeviceGetUUID(handle)),
            "name": text(self._nvml.nvmlDeviceGetName(handle)),
            "index": index,
        }
        info |= self._static(handle)
        device = Device(self._nvml, handle, self._clock, info, gpm_interval_ns=self._gpm_interval_ns)
        device.probe()
        self.devices.append(device)
        if device.state("mig_mode").off_reason is None and info.get("mig"):
            self._add_mig(handle, device)

    def _static(self, handle: Any) -> dict[str, Any]:
        """What does not change while the epoch lasts; what the device does not say is left out."""
        nvml = self._nvml
        calls: dict[str, Callable[[], Any]] = {
            "pci_bus_id": lambda: text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "fb_total_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).total),
            "max_sm_clock_hz": lambda: 10**6 * int(nvml.nvmlDeviceGetMaxClockInfo(handle, 1)),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        }  # fmt: skip
        known: dict[str, Any] = {}
        for name, call in calls.items():
            try:
                known[name] = call()
            except (self._nvml.NVMLError, NvmlFault) as error:
                if ACTIONS.get(code_of(error)) is Action.DOWN:
                    raise
        return known

    def _add_mig(self, parent: Any, gpu: Device) -> None:
        for index in range(int(self._nvml.nvmlDeviceGetMaxMigDeviceCount(parent))):
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
                info = {
                    "uuid": text(self._nvml.nvmlDeviceGetUUID(handle)),
                    "name": text(self._nvml.nvmlDeviceGetName(handle)),
                    "index": gpu.info["index"],
                    "parent": gpu.uuid,
                    "gpu_instance": int(self._nvml.nvmlDeviceGetGpuInstanceId(handle)),
                }
            except (self._nvml.NVMLError, NvmlFault):
                continue  # an unused slot: MIG indices have holes
            device = Device(
                self._nvml, handle, self._clock, info,
                gpu_instance=(parent, int(info["gpu_instance"])), gpm_interval_ns=self._gpm_interval_ns,
            )  # fmt: skip
            device.probe()
            self.devices.append(device)

    def read(self, tier: str) -> list[Sample | Event]:
        """One tier of every device. Raises :class:`DeviceLost` naming the device."""
        rows: list[Sample | Event] = []
        for device in list(self.devices):
            try:
                rows += device.read(tier)
            except DeviceLost as error:
                raise DeviceLost(f"{device.uuid}: {error.reason}") from error
        return rows

    def lost_answers(self) -> bool:
        """Whether a device that was lost when the epoch began answers again: time for another epoch."""
        for where in self.lost:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(int(where.removeprefix("index ")))
                self._nvml.nvmlDeviceGetUtilizationRates(handle)
            except (self._nvml.NVMLError, NvmlFault):
                continue
            return True
        return False

    def matrix(self) -> dict[str, Any]:
        """Driver, devices and each device's field statuses: what Describe and the result file carry."""
        return {
            "driver": self.driver,
            "devices": [{**device.info, "fields": device.matrix()} for device in self.devices],
            "lost": dict(self.lost),
        }

    def _register_events(self) -> None:
        """Xid, double-bit ECC and recovery events; not clock events (33 a second under load) nor
        single-bit."""
        wanted = 0
        for name in (
            "nvmlEventTypeXidCriticalError", "nvmlEventTypeDoubleBitEccError",
            "nvmlEventTypeGpuUnavailableError", "nvmlEventTypeGpuRecoveryAction",
        ):  # fmt: skip
            wanted |= int(getattr(self._nvml, name, 0))
        try:
            self._event_set = self._nvml.nvmlEventSetCreate()
            for device in self.devices:
                if "parent" in device.info:
                    continue
                handle = self._nvml.nvmlDeviceGetHandleByIndex(device.info["index"])
                supported = int(self._nvml.nvmlDeviceGetSupportedEventTypes(handle))
                self._nvml.nvmlDeviceRegisterEvents(handle, wanted & supported, self._event_set)
        except (self._nvml.NVMLError, NvmlFault):
            self._event_set = None  # without events the samples still stand

    def poll_event(self) -> Event | None:
        """An error event that has come, or ``None`` where none has or events are not supported."""
        if self._event_set is None:
            return None
        try:
            data = self._nvml.nvmlEventSetWait_v2(self._event_set, 0)
            uuid = text(self._nvml.nvmlDeviceGetUUID(data.device))
        except (self._nvml.NVMLError, NvmlFault):
            return None
        now_ns = self._clock.mono_ns()
        if data.eventType == self._nvml.nvmlEventTypeXidCriticalError:
            xid = int(data.eventData)
            return Event("xid", uuid, now_ns, {"xid": xid, "class": XID_CLASS.get(xid, "unknown")})
        return Event("nvml_event", uuid, now_ns, {"type": int(data.eventType), "data": int(data.eventData)})

    @property
    def has_events(self) -> bool:
        """Whether error events can be awaited in this epoch."""
        return self._event_set is not None

    def close(self) -> None:
        """Free what the epoch held; the driver may already be gone."""
        for device in self.devices:
            device.close()
        try:
            if self._event_set is not None:
                self._nvml.nvmlEventSetFree(self._event_set)
            self._nvml.nvmlShutdown()
        except (self._nvml.NVMLError, NvmlFault):
            return


def _name(error: BaseException) -> str:
    code = code_of(error)
    return ERROR_NAMES.get(code, str(error) or f"NVML_ERROR_{code}")
