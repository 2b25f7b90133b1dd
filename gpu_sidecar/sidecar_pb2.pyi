# ruff: noqa
# fmt: off
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("agent_id", "epoch", "next_seq", "clock", "description_json", "metrics")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_JSON_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    epoch: int
    next_seq: int
    clock: ClockIdentity
    description_json: str
    metrics: _containers.RepeatedCompositeFieldContainer[MetricDefinition]
    def __init__(self, agent_id: _Optional[str] = ..., epoch: _Optional[int] = ..., next_seq: _Optional[int] = ..., clock: _Optional[_Union[ClockIdentity, _Mapping]] = ..., description_json: _Optional[str] = ..., metrics: _Optional[_Iterable[_Union[MetricDefinition, _Mapping]]] = ...) -> None: ...

class MetricDefinition(_message.Message):
    __slots__ = ("id", "name", "unit", "kind", "window")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    unit: str
    kind: str
    window: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., unit: _Optional[str] = ..., kind: _Optional[str] = ..., window: _Optional[str] = ...) -> None: ...

class ClockIdentity(_message.Message):
    __slots__ = ("boot_id", "time_namespace")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    time_namespace: str
    def __init__(self, boot_id: _Optional[str] = ..., time_namespace: _Optional[str] = ...) -> None: ...

class TimeSyncRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimeSyncReply(_message.Message):
    __slots__ = ("received_ns", "sent_ns", "wall_ns", "clock", "epoch")
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    received_ns: int
    sent_ns: int
    wall_ns: int
    clock: ClockIdentity
    epoch: int
    def __init__(self, received_ns: _Optional[int] = ..., sent_ns: _Optional[int] = ..., wall_ns: _Optional[int] = ..., clock: _Optional[_Union[ClockIdentity, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("epoch", "from_seq")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    from_seq: int
    def __init__(self, epoch: _Optional[int] = ..., from_seq: _Optional[int] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("id", "source", "device", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    id: int
    source: str
    device: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., source: _Optional[str] = ..., device: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("metric", "before_ns", "values")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    BEFORE_NS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    metric: int
    before_ns: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, metric: _Optional[int] = ..., before_ns: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("metric", "bounds", "counts")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    metric: int
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, metric: _Optional[int] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[float]] = ...) -> None: ...

class Null(_message.Message):
    __slots__ = ("metric", "reason")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    metric: int
    reason: str
    def __init__(self, metric: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("seq", "epoch", "origin", "t_ns", "window_ns", "wall_offset_ns", "metrics", "values", "nulls", "series", "histograms", "event", "event_json")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    T_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_JSON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    epoch: int
    origin: int
    t_ns: int
    window_ns: int
    wall_offset_ns: int
    metrics: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    nulls: _containers.RepeatedCompositeFieldContainer[Null]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    histograms: _containers.RepeatedCompositeFieldContainer[Histogram]
    event: str
    event_json: str
    def __init__(self, seq: _Optional[int] = ..., epoch: _Optional[int] = ..., origin: _Optional[int] = ..., t_ns: _Optional[int] = ..., window_ns: _Optional[int] = ..., wall_offset_ns: _Optional[int] = ..., metrics: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ..., nulls: _Optional[_Iterable[_Union[Null, _Mapping]]] = ..., series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ..., histograms: _Optional[_Iterable[_Union[Histogram, _Mapping]]] = ..., event: _Optional[str] = ..., event_json: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("from_seq", "to_seq", "reason")
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    TO_SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    from_seq: int
    to_seq: int
    reason: str
    def __init__(self, from_seq: _Optional[int] = ..., to_seq: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("rows", "origins", "gaps", "next_seq", "epoch", "restarted")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    origins: _containers.RepeatedCompositeFieldContainer[Origin]
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    next_seq: int
    epoch: int
    restarted: bool
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[Origin, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., next_seq: _Optional[int] = ..., epoch: _Optional[int] = ..., restarted: _Optional[bool] = ...) -> None: ...
