/* A libnvidia-ml.so.1 that answers as an H200 under a constant load: it proves that the real Python binding, its
 * structures and value types are used rightly, without a driver. GPM latches every 100 ms, as measured: inside a
 * latch, success with zeros and a NaN for DRAM. */
#include <math.h>
#include <string.h>
#include <time.h>

typedef unsigned int u32;
typedef unsigned long long u64;

static u64 now_us(int clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static int device;

int nvmlInitWithFlags(u32 flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *b, u32 n) { strcpy(b, "580.1"); return 0; }
int nvmlSystemGetNVMLVersion(char *b, u32 n) { strcpy(b, "13.580.1"); return 0; }
int nvmlDeviceGetCount_v2(u32 *c) { *c = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **h) { *h = &device; return 0; }
int nvmlDeviceGetUUID(void *d, char *b, u32 n) { strcpy(b, "GPU-stub"); return 0; }
int nvmlDeviceGetName(void *d, char *b, u32 n) { strcpy(b, "Stub"); return 0; }

typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(void *d, memory_v2 *m) {
    m->total = 1000, m->reserved = 10, m->free = 490, m->used = 500;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(void *d, int kind, u32 *c) { *c = 1980; return 0; }
int nvmlDeviceGetClockInfo(void *d, int kind, u32 *c) { *c = kind == 1 ? 1500 : 3201; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, u32 *mw) { *mw = 700000; return 0; }
int nvmlDeviceGetPowerUsage(void *d, u32 *mw) { *mw = 500000; return 0; }
int nvmlDeviceGetMigMode(void *d, u32 *now, u32 *pending) { *now = *pending = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, u32 *r) { r[0] = 55, r[1] = 20; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, u64 *mj) { *mj = 2815940; return 0; }
int nvmlDeviceGetTemperature(void *d, int kind, u32 *c) { *c = 44; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *r) { *r = 4; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *d, u32 *c) { *c = 3; return 0; }

typedef struct {
    u32 id, scope;
    long long stamp, latency;
    u32 type;
    int code;
    union { double d; u32 ui; u64 ull; } value;
} field_value;
int nvmlDeviceGetFieldValues(void *d, int n, field_value *f) {
    for (int i = 0; i < n; i++) {
        f[i].code = 0, f[i].value.ull = 0, f[i].type = 3; /* unsigned long long */
        if (f[i].id == 186) f[i].type = 1, f[i].value.ui = 640000;
        if (f[i].id == 82) f[i].type = 0, f[i].value.d = 0.0; /* a double 0.0: not filled */
        if (f[i].id == 145) f[i].code = 3;
    }
    return 0;
}

typedef struct { u64 stamp; union { double d; u32 ui; u64 ull; } value; } buffered;
int nvmlDeviceGetSamples(void *d, int kind, u64 last, int *type, u32 *count, buffered *out) {
    u64 step = kind ? 200000 : 20000, now = now_us(CLOCK_REALTIME) / step;
    u32 found = 0, room = out ? *count : 1000;
    *type = 1;
    for (int back = kind ? 70 : 119; back >= 0 && found < room; back--) {
        u64 stamp = (now - back) * step;
        if (stamp <= last) continue;
        if (out) out[found].stamp = stamp, out[found].value.ui = kind ? 55 : 640000;
        found++;
    }
    *count = found;
    return found ? 0 : 6;
}

typedef struct { u32 pid; u64 bytes; u32 gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *n, process *p) {
    if (!p || *n < 1) { *n = 1; return 7; }
    p[0].pid = 1, p[0].bytes = 12345, *n = 1;
    return 0;
}

typedef struct { u64 latch; } sample;
typedef struct { u32 id; int code; double value; char *a, *b, *c; } metric;
typedef struct { u32 version, n; sample *first, *last; metric metrics[333]; } request;
static sample samples[64];
static int used;
int nvmlGpmQueryDeviceSupport(void *d, u32 *support) { support[1] = 1; return 0; }
int nvmlGpmSampleAlloc(void **s) { *s = &samples[used++]; return 0; }
int nvmlGpmSampleFree(void *s) { return 0; }
int nvmlGpmSampleGet(void *d, sample *s) { s->latch = now_us(CLOCK_MONOTONIC) / 100000; return 0; }
int nvmlGpmMetricsGet(request *r) {
    int same = r->first->latch == r->last->latch;
    for (u32 i = 0; i < r->n; i++) {
        metric *m = &r->metrics[i];
        m->code = m->id >= 60 ? 3 : 0;
        m->value = m->id == 10 ? (same ? NAN : 17.5) : same ? 0.0 : 90.0;
    }
    return 0;
}

typedef struct { void *device; u64 type, data; u32 gi, ci; } event;
int nvmlEventSetCreate(void **s) { *s = &device; return 0; }
int nvmlEventSetFree(void *s) { return 0; }
int nvmlDeviceGetSupportedEventTypes(void *d, u64 *types) { *types = 0xff9f; return 0; }
int nvmlDeviceRegisterEvents(void *d, u64 types, void *s) { return 0; }
int nvmlEventSetWait_v2(void *s, event *e, u32 ms) {
    static int told;
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&t, 0);
    if (told) return 10;
    told = 1, e->device = &device, e->type = 8, e->data = 79;
    return 0;
}
