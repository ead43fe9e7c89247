/* NVML stand-in: what a health check reads. A file that says "error <code>" refuses its call. */
#include "nvml.h"

#define LINKS 36 /* NVML_NVLINK_MAX_LINKS */

#define UNSIGNED_READING(function, file, fallback)                                                  \
    EXPORT int function(struct device *device, unsigned *out) {                                     \
        ENTER_GPU(device);                                                                          \
        return nvml_unsigned(device->gpu, file, fallback, out);                                     \
    }

UNSIGNED_READING(nvmlDeviceGetBrand, "brand", 14)
UNSIGNED_READING(nvmlDeviceGetMinorNumber, "minor", 0)
UNSIGNED_READING(nvmlDeviceGetModuleId, "module_id", 0)
UNSIGNED_READING(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", 4)
UNSIGNED_READING(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
UNSIGNED_READING(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", 4)
UNSIGNED_READING(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
UNSIGNED_READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_device_max", 4)
UNSIGNED_READING(nvmlDeviceGetPcieReplayCounter, "pcie_replays", 0)
UNSIGNED_READING(nvmlDeviceGetPerformanceState, "pstate", 0)
UNSIGNED_READING(nvmlDeviceGetPowerState, "pstate", 0)
UNSIGNED_READING(nvmlDeviceGetMemoryBusWidth, "bus_width", 5120)

/* --- ECC --------------------------------------------------------------------------------- */

static int ecc_capable(int gpu) { return standin_number(gpu, "ecc_capable", 1) != 0; }

EXPORT int nvmlDeviceGetEccMode(struct device *device, unsigned *current, unsigned *pending) {
    ENTER_GPU(device);
    if (!ecc_capable(device->gpu)) return NOT_SUPPORTED;
    int code = nvml_unsigned(device->gpu, "ecc_current", 1, current);
    if (code) return code;
    return nvml_unsigned(device->gpu, "ecc_pending", *current, pending);
}

EXPORT int nvmlDeviceSetEccMode(struct device *device, unsigned mode) {
    ENTER_GPU(device);
    if (!ecc_capable(device->gpu)) return NOT_SUPPORTED;
    return standin_write_number(device->gpu, "ecc_pending", mode != 0) ? UNKNOWN_ERROR : SUCCESS;
}

/* Counts through the device handle vanish while MIG is on; a MIG handle tells only volatile
 * uncorrected ones outside of the DRAM. */
static int ecc_count(struct device *device, unsigned type, unsigned counter, const char *location,
                     unsigned long long *out) {
    char name[STANDIN_TEXT];
    uint64_t value;
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    if (!ecc_capable(device->gpu)) return NOT_SUPPORTED;
    if (standin_number(device->gpu, "ecc_current", 1) == 0) return NOT_SUPPORTED;
    int part = device->gi != STANDIN_NONE, dram = strcmp(location, "_dram") == 0;
    if (!part && counter == 0 && nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    if (part && (type != 1 || counter != 0 || dram || location[0] == 0)) return NOT_SUPPORTED;
    snprintf(name, sizeof name, "ecc_%s_%s%s", type ? "uncorrected" : "corrected",
             counter ? "aggregate" : "volatile", location);
    int code = nvml_reading(device->gpu, name, 0, &value);
    *out = value;
    return code;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct device *device, unsigned type, unsigned counter,
                                       unsigned long long *out) {
    ENTER_ANY(device);
    return ecc_count(device, type, counter, "", out);
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(struct device *device, unsigned type, unsigned counter,
                                           unsigned location, unsigned long long *out) {
    static const char *const locations[] = {"_l1",      "_l2",     "_dram", "_regfile",
                                            "_texture", "_shared", "_cbu",  "_sram"};
    ENTER_ANY(device);
    if (location >= sizeof locations / sizeof *locations) return INVALID_ARGUMENT;
    return ecc_count(device, type, counter, locations[location], out);
}

EXPORT int nvmlDeviceClearEccErrorCounts(struct device *device, unsigned counter) {
    ENTER_GPU(device);
    if (counter > 1) return INVALID_ARGUMENT;
    if (!ecc_capable(device->gpu)) return NOT_SUPPORTED;
    const char *kind = counter ? "aggregate" : "volatile";
    char name[STANDIN_TEXT];
    snprintf(name, sizeof name, "ecc_uncorrected_%s", kind);
    standin_write_number(device->gpu, name, 0);
    snprintf(name, sizeof name, "ecc_corrected_%s", kind);
    standin_write_number(device->gpu, name, 0);
    return SUCCESS;
}

struct sram_status {
    unsigned version;
    unsigned long long counts[11];
    unsigned threshold_exceeded;
};

EXPORT int nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_status *out) {
    static const char *const names[] = {
        "sram_aggregate_parity",      "sram_aggregate_secded",   "sram_aggregate_corrected",
        "sram_volatile_parity",       "sram_volatile_secded",    "sram_volatile_corrected",
        "sram_aggregate_bucket_l2",   "sram_aggregate_bucket_sm", "sram_aggregate_bucket_pcie",
        "sram_aggregate_bucket_mcu",  "sram_aggregate_bucket_other"};
    ENTER_GPU(device);
    if (out->version != 0x1000068) return VERSION_MISMATCH;
    if (standin_number(device->gpu, "retires_pages", 0)) return NOT_SUPPORTED;
    for (int i = 0; i < 11; i++) {
        uint64_t value;
        int code = nvml_reading(device->gpu, names[i], 0, &value);
        if (code) return code;
        out->counts[i] = value;
    }
    return nvml_unsigned(device->gpu, "sram_threshold_exceeded", 0, &out->threshold_exceeded);
}

struct sram_entry {
    unsigned facts[7]; /* unit, location, sublocation, extlocation, address, parity, count */
};

struct sram_counts {
    unsigned version, count;
    struct sram_entry *entries;
};

EXPORT int nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(struct device *device,
                                                            struct sram_counts *out) {
    char text[8192], *at = text;
    ENTER_GPU(device);
    if (out->version != 0x1000010) return VERSION_MISMATCH;
    if (standin_number(device->gpu, "retires_pages", 0)) return NOT_SUPPORTED;
    standin_whole(device->gpu, "sram_unique", text, sizeof text);
    unsigned count = 0, room = out->entries == NULL ? 0 : out->count;
    for (;; count++) {
        struct sram_entry entry;
        int read = 0;
        for (int i = 0; i < 7; i++, read++) {
            char *end;
            entry.facts[i] = (unsigned)strtoul(at, &end, 0);
            if (end == at) break;
            at = end;
        }
        if (read < 7) break;
        if (count < room) out->entries[count] = entry;
    }
    out->count = count;
    return count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* --- retirement, remapping, repair -------------------------------------------------------- */

static int retires_pages(int gpu) { return standin_number(gpu, "retires_pages", 0) != 0; }

static int retired(struct device *device, unsigned cause, unsigned *count,
                   unsigned long long *addresses, unsigned long long *times) {
    char text[16384], *at = text;
    if (cause > 1) return INVALID_ARGUMENT;
    if (!retires_pages(device->gpu)) return NOT_SUPPORTED;
    unsigned room = addresses == NULL ? 0 : *count, found = 0;
    standin_whole(device->gpu, cause ? "retired_pages_dbe" : "retired_pages_sbe", text, sizeof text);
    for (;; found++) { /* one line "address time" each */
        char *end;
        unsigned long long address = strtoull(at, &end, 0);
        if (end == at) break;
        unsigned long long time = strtoull(end, &at, 0);
        if (found < room) addresses[found] = address;
        if (found < room && times != NULL) times[found] = time;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPages(struct device *device, unsigned cause, unsigned *count,
                                     unsigned long long *addresses) {
    ENTER_GPU(device);
    return retired(device, cause, count, addresses, NULL);
}

EXPORT int nvmlDeviceGetRetiredPages_v2(struct device *device, unsigned cause, unsigned *count,
                                        unsigned long long *addresses, unsigned long long *times) {
    ENTER_GPU(device);
    return retired(device, cause, count, addresses, times);
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned *pending) {
    ENTER_GPU(device);
    if (!retires_pages(device->gpu)) return NOT_SUPPORTED;
    return nvml_unsigned(device->gpu, "retired_pending", 0, pending);
}

static int remaps_rows(int gpu) {
    struct standin_gi instance;
    if (retires_pages(gpu) || !ecc_capable(gpu)) return 0;
    return !(nvml_mig_on(gpu) && standin_gi_list(gpu, &instance, 1) > 0);
}

EXPORT int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected,
                                     unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER_GPU(device);
    if (!remaps_rows(device->gpu)) return NOT_SUPPORTED;
    int code = nvml_unsigned(device->gpu, "remap_corrected", 0, corrected);
    if (!code) code = nvml_unsigned(device->gpu, "remap_uncorrected", 0, uncorrected);
    if (!code) code = nvml_unsigned(device->gpu, "remap_pending", 0, pending);
    if (!code) code = nvml_unsigned(device->gpu, "remap_failed", 0, failed);
    return code;
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(struct device *device, unsigned *banks) {
    char text[STANDIN_TEXT];
    ENTER_GPU(device);
    if (!remaps_rows(device->gpu)) return NOT_SUPPORTED;
    standin_text(device->gpu, "remap_histogram", text, sizeof text, "640 0 0 0 0");
    if (strncmp(text, "error ", 6) == 0) return atoi(text + 6);
    memset(banks, 0, 5 * sizeof *banks); /* max, high, partial, low, none */
    sscanf(text, "%u %u %u %u %u", &banks[0], &banks[1], &banks[2], &banks[3], &banks[4]);
    return SUCCESS;
}

struct repair {
    unsigned version, channel, tpc;
};

EXPORT int nvmlDeviceGetRepairStatus(struct device *device, struct repair *out) {
    ENTER_GPU(device);
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    if (retires_pages(device->gpu)) return NOT_SUPPORTED;
    int code = nvml_unsigned(device->gpu, "repair_channel", 0, &out->channel);
    return code ? code : nvml_unsigned(device->gpu, "repair_tpc", 0, &out->tpc);
}

/* --- NVLink and fabric -------------------------------------------------------------------- */

static int link_reading(struct device *device, unsigned link, const char *what, uint64_t fallback,
                        uint64_t *out) {
    char name[STANDIN_TEXT];
    if (link >= LINKS) return INVALID_ARGUMENT;
    if (link >= standin_number(device->gpu, "nvlinks", 0)) return NOT_SUPPORTED;
    snprintf(name, sizeof name, "nvlink_%u_%s", link, what);
    return nvml_reading(device->gpu, name, fallback, out);
}

static int link_unsigned(struct device *device, unsigned link, const char *what, uint64_t fallback,
                         unsigned *out) {
    uint64_t value = 0;
    int code = link_reading(device, link, what, fallback, &value);
    if (code == SUCCESS) *out = (unsigned)value;
    return code;
}

EXPORT int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active) {
    ENTER_GPU(device);
    return link_unsigned(device, link, "state", 1, active);
}

EXPORT int nvmlDeviceGetNvLinkVersion(struct device *device, unsigned link, unsigned *version) {
    ENTER_GPU(device);
    return link_unsigned(device, link, "version", 6, version);
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned link,
                                               unsigned *type) {
    ENTER_GPU(device);
    return link_unsigned(device, link, "type", 2, type);
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned link, unsigned counter,
                                           unsigned long long *out) {
    char name[32];
    uint64_t value = 0;
    ENTER_GPU(device);
    if (counter > 4) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "errors_%u", counter);
    int code = link_reading(device, link, name, 0, &value);
    *out = value;
    return code;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned link,
                                               struct pci *out) {
    char name[STANDIN_TEXT], text[STANDIN_TEXT];
    uint64_t value;
    ENTER_GPU(device);
    int code = link_reading(device, link, "state", 1, &value);
    if (code) return code;
    snprintf(name, sizeof name, "nvlink_%u_remote", link);
    standin_text(device->gpu, name, text, sizeof text, "0000:0a:00.0");
    memset(out, 0, sizeof *out);
    sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFF,
             out->bus & 0xFF, out->device & 0x1F);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus,
             out->device);
    return SUCCESS;
}

struct fabric { /* version 3; version 2 ends before `summary` */
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, mask;
    unsigned char summary;
};

EXPORT int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out) {
    ENTER_GPU(device);
    unsigned known = (unsigned)standin_number(device->gpu, "fabric_version", 3), summary = 0;
    int third = out->version == 0x3000028 && known >= 3;
    if (!third && out->version != 0x2000024) return VERSION_MISMATCH;
    int code = nvml_unsigned(device->gpu, "fabric_state", 0, &out->state);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_status", 0, &out->status);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_clique", 0, &out->clique);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_mask", 0, &out->mask);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_summary", 0, &summary);
    if (third) out->summary = (unsigned char)summary;
    memset(out->cluster, out->state ? 0x5A : 0, sizeof out->cluster);
    return code;
}

/* The first form of all, without a version and without health; file fabric_version 1: the only one. */
struct first_fabric {
    unsigned char cluster[16];
    unsigned status, clique, state;
};

EXPORT int nvmlDeviceGetGpuFabricInfo(struct device *device, struct first_fabric *out) {
    ENTER_GPU(device);
    int code = nvml_unsigned(device->gpu, "fabric_state", 0, &out->state);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_status", 0, &out->status);
    if (!code) code = nvml_unsigned(device->gpu, "fabric_clique", 0, &out->clique);
    memset(out->cluster, out->state ? 0x5A : 0, sizeof out->cluster);
    return code;
}

/* --- fields ------------------------------------------------------------------------------- */

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    unsigned long long value;
};

static int field_value(struct device *device, struct field *field, uint64_t *value) {
    char name[STANDIN_TEXT];
    int gpu = device->gpu;
    snprintf(name, sizeof name, "field_%u_%u", field->id, field->scope);
    if (standin_exists(gpu, name)) return nvml_reading(gpu, name, 0, value);
    snprintf(name, sizeof name, "field_%u", field->id);
    if (standin_exists(gpu, name)) return nvml_reading(gpu, name, 0, value);
    switch (field->id) {
    case 82: return nvml_reading(gpu, "memory_temperature", 40, value);
    case 94: return nvml_reading(gpu, "pcie_replays", 0, value);
    case 95: return nvml_reading(gpu, "pcie_replay_rollovers", 0, value);
    case 165: return link_reading(device, field->scope, "state", 1, value);
    case 166: return link_reading(device, field->scope, "version", 6, value);
    case 184:
        if (!standin_number(gpu, "mig_capable", 0)) return NOT_SUPPORTED;
        return nvml_reading(gpu, "mig_online", 0, value);
    case 230: return nvml_reading(gpu, "recovery_action", 0, value);
    default: *value = 0; return field->id == 169 || (field->id >= 173 && field->id <= 183)
                                    ? SUCCESS : NOT_SUPPORTED;
    }
}

EXPORT int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields) {
    ENTER_GPU(device);
    for (int i = 0; i < count; i++) {
        uint64_t value = 0;
        fields[i].code = field_value(device, &fields[i], &value);
        fields[i].type = 1; /* unsigned int: the small end of the value's eight bytes */
        fields[i].value = fields[i].code == SUCCESS ? value : 0;
    }
    return SUCCESS;
}

/* --- clocks and heat ----------------------------------------------------------------------- */

static int clock_reasons(struct device *device, unsigned long long *out) {
    uint64_t value;
    int code = nvml_reading(device->gpu, "clocks_reasons", 0, &value);
    *out = value;
    return code;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *out) {
    ENTER_GPU(device);
    return clock_reasons(device, out);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device,
                                                     unsigned long long *out) {
    ENTER_GPU(device);
    return clock_reasons(device, out);
}

static int clock_of(struct device *device, const char *kind, unsigned type, unsigned *out) {
    static const char *const types[] = {"graphics", "sm", "memory", "video"};
    char name[STANDIN_TEXT];
    if (type >= 4) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "%s_%s", kind, types[type]);
    return nvml_unsigned(device->gpu, name, type == 2 ? 2619 : 1980, out);
}

EXPORT int nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *out) {
    ENTER_GPU(device);
    return clock_of(device, "clock", type, out);
}

EXPORT int nvmlDeviceGetMaxClockInfo(struct device *device, unsigned type, unsigned *out) {
    ENTER_GPU(device);
    return clock_of(device, "clock_max", type, out);
}

EXPORT int nvmlDeviceGetClock(struct device *device, unsigned type, unsigned id, unsigned *out) {
    ENTER_GPU(device);
    if (id > 3) return INVALID_ARGUMENT;
    return clock_of(device, id == 3 ? "clock_max" : "clock", type, out);
}

EXPORT int nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *out) {
    ENTER_GPU(device);
    return sensor ? INVALID_ARGUMENT : nvml_unsigned(device->gpu, "temperature", 34, out);
}

struct temperature {
    unsigned version, sensor;
    int value;
};

EXPORT int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *out) {
    unsigned value = 0;
    ENTER_GPU(device);
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    if (out->sensor) return INVALID_ARGUMENT;
    int code = nvml_unsigned(device->gpu, "temperature", 34, &value);
    out->value = (int)value;
    return code;
}

EXPORT int nvmlDeviceGetTemperatureThreshold(struct device *device, unsigned kind, unsigned *out) {
    char name[STANDIN_TEXT];
    ENTER_GPU(device);
    if (kind >= 8) return INVALID_ARGUMENT;
    if (kind >= 4) return NOT_SUPPORTED;
    snprintf(name, sizeof name, "temperature_threshold_%u", kind);
    return nvml_unsigned(device->gpu, name, 95 - 3 * kind, out);
}
