/* NVML stand-in: memory, processes, and the modes that say who may use a GPU.
 *
 *   gpus/<n>/exported           bytes in use that no process listed has
 */
#include "nvml.h"

#include <dirent.h>

#define UNAVAILABLE 0xFFFFFFFFFFFFFFFFull

/* --- processes --------------------------------------------------------------------------- */

int nvml_foreign(int gpu, const char *kind, struct process *out, int max) {
    int pids[256], count = 0, found = standin_numbers(gpu, "processes", pids, 256);
    for (int i = 0; i < found && count < max; i++) {
        char name[64], text[STANDIN_TEXT], list[32] = "", size[32] = "";
        struct process process = {(unsigned)pids[i], UNAVAILABLE, STANDIN_NONE, STANDIN_NONE};
        snprintf(name, sizeof name, "processes/%d", pids[i]);
        if (!standin_text(gpu, name, text, sizeof text, NULL)) continue;
        sscanf(text, "%31s %31s %u %u", list, size, &process.gi, &process.ci);
        if (kind != NULL && strcmp(list, kind) != 0) continue;
        if (size[0] != '-') process.used = strtoull(size, NULL, 0);
        out[count++] = process;
    }
    return count;
}

static int within(const struct process *process, uint32_t gi, uint32_t ci) {
    if (gi == STANDIN_NONE) return 1;
    return process->gi == gi && (ci == STANDIN_NONE || process->ci == ci);
}

static int own(int gpu, struct process *out, int max) {
    static struct standin_allocation records[STANDIN_RECORDS];
    struct standin_context contexts[256];
    int found = standin_contexts(gpu, contexts, 256), count = 0;
    int held = standin_allocations(gpu, records, STANDIN_RECORDS);
    for (int i = 0; i < found && count < max; i++) {
        struct process process = {contexts[i].pid, 0, contexts[i].gi, contexts[i].ci};
        int known = 0;
        for (int j = 0; j < count; j++)
            known |= out[j].pid == process.pid && out[j].gi == process.gi && out[j].ci == process.ci;
        if (known) continue; /* one process, several contexts */
        for (int j = 0; j < held; j++)
            if (records[j].pid == process.pid && records[j].gi == process.gi)
                process.used += records[j].length;
        out[count++] = process;
    }
    return count;
}

int nvml_in_use(int gpu, uint32_t gi, uint32_t ci) {
    struct process found[512];
    int count = own(gpu, found, 256);
    count += nvml_foreign(gpu, NULL, found + count, 256);
    for (int i = 0; i < count; i++)
        if (within(&found[i], gi, ci)) return 1;
    return 0;
}

static int listed(struct device *device, const char *kind, unsigned *count, struct process *out) {
    struct process found[512];
    unsigned room = out == NULL ? 0 : *count, kept = 0;
    int all = strcmp(kind, "compute") == 0 ? own(device->gpu, found, 256) : 0;
    all += nvml_foreign(device->gpu, kind, found + all, 256);
    for (int i = 0; i < all; i++) {
        if (!within(&found[i], device->gi, device->ci)) continue;
        if (kept < room) out[kept] = found[i];
        kept++;
    }
    *count = kept;
    return kept > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                   struct process *out) {
    ENTER_ANY(device);
    return listed(device, "compute", count, out);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                                    struct process *out) {
    ENTER_ANY(device);
    return listed(device, "graphics", count, out);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                      struct process *out) {
    ENTER_ANY(device);
    return listed(device, "mps", count, out);
}

/* --- memory ------------------------------------------------------------------------------ */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static int measure(struct device *device, struct memory_v2 *out) {
    uint64_t begin, end, reserved, ignored;
    struct process found[256];
    int code = standin_reading(device->gpu, "total", 0, &ignored);
    if (code) return code;
    if (standin_range(device->gpu, device->gi, &begin, &end, &reserved) != 0) return NOT_FOUND;
    out->total = end - begin;
    out->reserved = reserved;
    out->used = standin_used(device->gpu, device->gi) + standin_number(device->gpu, "exported", 0);
    int count = nvml_foreign(device->gpu, NULL, found, 256);
    for (int i = 0; i < count; i++)
        if (found[i].used != UNAVAILABLE && within(&found[i], device->gi, device->ci))
            out->used += found[i].used;
    unsigned long long taken = out->used + reserved;
    out->free = taken < out->total ? out->total - taken : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out) {
    struct memory_v2 found;
    ENTER_ANY(device);
    int code = measure(device, &found);
    if (code) return code;
    out->total = found.total;
    out->free = found.free;
    out->used = found.used + found.reserved; /* version 1 knows no reserve of its own */
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *out) {
    ENTER_ANY(device);
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    return measure(device, out);
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct memory *out) {
    ENTER_GPU(device);
    uint64_t total;
    int code = nvml_reading(device->gpu, "bar1_total", 64ull << 20, &total);
    out->total = out->free = total; /* here the order is total, free, used as well */
    out->used = 0;
    return code;
}

/* --- modes ------------------------------------------------------------------------------- */

static int put(int gpu, const char *name, unsigned value) {
    return standin_write_number(gpu, name, value) == 0 ? SUCCESS : UNKNOWN_ERROR;
}

EXPORT int nvmlDeviceGetPersistenceMode(struct device *device, unsigned *mode) {
    ENTER_GPU(device);
    return nvml_unsigned(device->gpu, "persistence", 0, mode);
}

EXPORT int nvmlDeviceSetPersistenceMode(struct device *device, unsigned mode) {
    ENTER_GPU(device);
    return mode > 1 ? INVALID_ARGUMENT : put(device->gpu, "persistence", mode);
}

EXPORT int nvmlDeviceGetComputeMode(struct device *device, unsigned *mode) {
    ENTER_ANY(device);
    return nvml_unsigned(device->gpu, "compute_mode", 0, mode);
}

EXPORT int nvmlDeviceSetComputeMode(struct device *device, unsigned mode) {
    ENTER_ANY(device);
    return mode > 3 ? INVALID_ARGUMENT : put(device->gpu, "compute_mode", mode);
}

EXPORT int nvmlDeviceGetApplicationsClock(struct device *device, unsigned type, unsigned *mhz) {
    ENTER_GPU(device);
    if (type == 2) return nvml_unsigned(device->gpu, "application_clock_memory", 2619, mhz);
    if (type > 3) return INVALID_ARGUMENT;
    return nvml_unsigned(device->gpu, "application_clock_graphics", 1980, mhz);
}

EXPORT int nvmlDeviceSetApplicationsClocks(struct device *device, unsigned memory,
                                           unsigned graphics) {
    ENTER_GPU(device);
    int code = put(device->gpu, "application_clock_memory", memory);
    return code ? code : put(device->gpu, "application_clock_graphics", graphics);
}

EXPORT int nvmlDeviceResetApplicationsClocks(struct device *device) {
    ENTER_GPU(device);
    standin_remove(device->gpu, "application_clock_memory");
    standin_remove(device->gpu, "application_clock_graphics");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementLimit(struct device *device, unsigned *milliwatts) {
    ENTER_GPU(device);
    return nvml_unsigned(device->gpu, "power_limit", 700000, milliwatts);
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(struct device *device, unsigned *milliwatts) {
    ENTER_GPU(device);
    return nvml_unsigned(device->gpu, "power_limit_default", 700000, milliwatts);
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(struct device *device, unsigned *least,
                                                        unsigned *most) {
    ENTER_GPU(device);
    int code = nvml_unsigned(device->gpu, "power_limit_min", 200000, least);
    return code ? code : nvml_unsigned(device->gpu, "power_limit_max", 700000, most);
}

EXPORT int nvmlDeviceSetPowerManagementLimit(struct device *device, unsigned milliwatts) {
    ENTER_GPU(device);
    if (milliwatts < standin_number(device->gpu, "power_limit_min", 200000)) return INVALID_ARGUMENT;
    if (milliwatts > standin_number(device->gpu, "power_limit_max", 700000)) return INVALID_ARGUMENT;
    return put(device->gpu, "power_limit", milliwatts);
}

EXPORT int nvmlDeviceGetUtilizationRates(struct device *device, unsigned *rates) {
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    int code = nvml_unsigned(device->gpu, "utilization_gpu", 0, &rates[0]);
    return code ? code : nvml_unsigned(device->gpu, "utilization_memory", 0, &rates[1]);
}

/* --- accounting -------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetAccountingMode(struct device *device, unsigned *mode) {
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) {
        *mode = 0; /* off while MIG is on, and cannot be set */
        return SUCCESS;
    }
    return nvml_unsigned(device->gpu, "accounting", 0, mode);
}

EXPORT int nvmlDeviceSetAccountingMode(struct device *device, unsigned mode) {
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    return mode > 1 ? INVALID_ARGUMENT : put(device->gpu, "accounting", mode);
}

EXPORT int nvmlDeviceClearAccountingPids(struct device *device) {
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    return standin_write(device->gpu, "accounting_pids", "") == 0 ? SUCCESS : UNKNOWN_ERROR;
}

EXPORT int nvmlDeviceGetAccountingBufferSize(struct device *device, unsigned *size) {
    ENTER_GPU(device);
    return nvml_unsigned(device->gpu, "accounting_buffer", 4000, size);
}

static unsigned accounted(int gpu, unsigned *out, unsigned room) {
    char text[16384], *at = text, *end;
    unsigned count = 0;
    standin_whole(gpu, "accounting_pids", text, sizeof text);
    for (;; count++, at = end) {
        unsigned pid = (unsigned)strtoul(at, &end, 10);
        if (end == at) return count;
        if (count < room) out[count] = pid;
    }
}

EXPORT int nvmlDeviceGetAccountingPids(struct device *device, unsigned *count, unsigned *pids) {
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    unsigned room = *count;
    *count = accounted(device->gpu, pids, room);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct accounting {
    unsigned gpu_utilization, memory_utilization;
    unsigned long long memory_max, time, start_time;
    unsigned running, reserved[5];
};

EXPORT int nvmlDeviceGetAccountingStats(struct device *device, unsigned pid,
                                        struct accounting *out) {
    unsigned pids[4000];
    ENTER_GPU(device);
    if (nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    unsigned count = accounted(device->gpu, pids, 4000);
    for (unsigned i = 0; i < count; i++) {
        if (pids[i] != pid) continue;
        memset(out, 0, sizeof *out);
        out->running = standin_start_time(pid) != 0;
        return SUCCESS;
    }
    return NOT_FOUND;
}
