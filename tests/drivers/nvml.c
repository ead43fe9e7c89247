/* NVML stand-in: opening, handles and identity. See README.md for the files it reads. */
#include "nvml.h"

#include <dirent.h>
#include <unistd.h>

static int users;
static unsigned generation;
static struct device *devices;
static struct device mig_devices[STANDIN_GPUS][64];

/* --- the way in -------------------------------------------------------------------------- */

int nvml_enter(const char *function) {
    if (users == 0) return UNINITIALIZED;
    return standin_fault(function, NULL);
}

int nvml_enter_gpu(const char *function, int gpu) {
    char uuid[STANDIN_TEXT];
    if (users == 0) return UNINITIALIZED;
    standin_text(gpu, "uuid", uuid, sizeof uuid, NULL);
    int struck = standin_fault(function, uuid);
    if (struck) return struck;
    return standin_number(gpu, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}

int nvml_enter_device(const char *function, const struct device *device) {
    char uuid[STANDIN_TEXT];
    struct standin_ci found;
    if (users == 0) return UNINITIALIZED;
    if (device == NULL) return INVALID_ARGUMENT;
    if (!standin_text(device->gpu, "uuid", uuid, sizeof uuid, NULL)) return GPU_IS_LOST;
    if (strcmp(uuid, device->uuid) != 0) return GPU_IS_LOST; /* another card in its place */
    int struck = nvml_enter_gpu(function, device->gpu);
    if (struck) return struck;
    if (device->gi == STANDIN_NONE) return SUCCESS;
    return standin_ci_read(device->gpu, device->gi, device->ci, &found) ? SUCCESS : INVALID_ARGUMENT;
}

static int initialise(const char *function) {
    int struck = standin_root() == NULL ? DRIVER_NOT_LOADED : standin_fault(function, NULL);
    if (struck == SUCCESS) users++;
    return struck;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return initialise("nvmlInit");
}

EXPORT int nvmlInit_v2(void) { return initialise("nvmlInit"); }

EXPORT int nvmlInit(void) { return initialise("nvmlInit"); }

/* gpus/<n>/mig_forgets (1): without persistence MIG mode is lost with the last client, as from
 * Hopper on; a process that lets the library go is taken for the last. */
static void forget_modes(void) {
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS);
    for (int i = 0; i < count; i++) {
        if (!standin_number(gpus[i], "mig_forgets", 0)) continue;
        if (standin_number(gpus[i], "persistence", 0)) continue;
        standin_write_number(gpus[i], "mig_current", 0);
        standin_write_number(gpus[i], "mig_pending", 0);
    }
}

EXPORT int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    if (users == 1) forget_modes();
    if (--users == 0) generation++;
    return SUCCESS;
}

unsigned nvml_generation(void) { return generation; }

EXPORT const char *nvmlErrorString(int code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "Operating system call blocked", "RM version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch",
        "Deprecated", "Not ready", "GPU not found", "Invalid state", "Reset type not supported"};
    if (code >= 0 && code < (int)(sizeof texts / sizeof *texts)) return texts[code];
    return "Unknown Error";
}

/* --- handles ----------------------------------------------------------------------------- */

struct device *nvml_device(int gpu) {
    char uuid[STANDIN_TEXT];
    standin_text(gpu, "uuid", uuid, sizeof uuid, NULL);
    for (struct device *known = devices; known != NULL; known = known->next)
        if (known->gpu == gpu && strcmp(known->uuid, uuid) == 0) return known;
    struct device *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) return NULL;
    fresh->gpu = gpu;
    fresh->gi = fresh->ci = STANDIN_NONE;
    snprintf(fresh->uuid, sizeof fresh->uuid, "%s", uuid);
    fresh->next = devices;
    devices = fresh;
    return fresh;
}

struct device *nvml_mig_device(int gpu, uint32_t gi, uint32_t ci) {
    struct standin_gi instance;
    if (!standin_gi_read(gpu, gi, &instance)) return NULL;
    struct device *slot = &mig_devices[gpu][(instance.start + ci) % 64];
    slot->gpu = gpu;
    slot->gi = gi;
    slot->ci = ci;
    standin_text(gpu, "uuid", slot->uuid, sizeof slot->uuid, NULL);
    return slot;
}

int nvml_index(int gpu) {
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS);
    for (int i = 0; i < count; i++)
        if (gpus[i] == gpu) return i;
    return -1;
}

static int handed(const char *function, int gpu, struct device **out) {
    int struck = nvml_enter_gpu(function, gpu);
    if (struck) return struck;
    *out = nvml_device(gpu);
    return *out == NULL ? UNKNOWN_ERROR : SUCCESS;
}

static int named(const char *function, const char *file, const char *text, struct device **out) {
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS);
    for (int i = 0; i < count; i++) {
        char found[STANDIN_TEXT];
        standin_text(gpus[i], file, found, sizeof found, NULL);
        if (strcmp(found, text) == 0) return handed(function, gpus[i], out);
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER();
    int gpus[STANDIN_GPUS];
    *count = (unsigned)standin_gpus(gpus, STANDIN_GPUS);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    if (users == 0) return UNINITIALIZED;
    int gpus[STANDIN_GPUS];
    if (index >= (unsigned)standin_gpus(gpus, STANDIN_GPUS)) return INVALID_ARGUMENT;
    return handed(__func__, gpus[index], out);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **out) {
    uint32_t gi, ci;
    int gpu;
    if (users == 0) return UNINITIALIZED;
    if (!standin_find(uuid, &gpu, &gi, &ci)) return NOT_FOUND;
    int code = handed(__func__, gpu, out);
    if (code == SUCCESS && gi != STANDIN_NONE) *out = nvml_mig_device(gpu, gi, ci);
    return code;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, struct device **out) {
    unsigned domain, bus, slot;
    char wanted[64];
    if (users == 0) return UNINITIALIZED;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return INVALID_ARGUMENT;
    }
    snprintf(wanted, sizeof wanted, "%04x:%02x:%02x.0", domain, bus, slot);
    return named(__func__, "bus_id", wanted, out);
}

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, struct device **out) {
    if (users == 0) return UNINITIALIZED;
    return named(__func__, "serial", serial, out);
}

EXPORT int nvmlGetExcludedDeviceCount(unsigned *count) {
    ENTER();
    *count = (unsigned)standin_number(STANDIN_HOST, "excluded", 0);
    return SUCCESS;
}

/* --- readings ---------------------------------------------------------------------------- */

int nvml_reading(int gpu, const char *name, uint64_t fallback, uint64_t *value) {
    char busy[STANDIN_TEXT];
    snprintf(busy, sizeof busy, "%s_busy", name);
    if (standin_exists(gpu, busy)) {
        struct standin_context context;
        if (standin_contexts(gpu, &context, 1) > 0) return standin_reading(gpu, busy, 0, value);
    }
    return standin_reading(gpu, name, fallback, value);
}

int nvml_unsigned(int gpu, const char *name, uint64_t fallback, unsigned *value) {
    uint64_t found;
    int code = nvml_reading(gpu, name, fallback, &found);
    if (code == SUCCESS) *value = (unsigned)found;
    return code;
}

int nvml_copy(const char *text, char *out, unsigned size) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvml_string(int gpu, const char *name, const char *fallback, char *out, unsigned size) {
    char text[STANDIN_TEXT];
    int there = standin_text(gpu, name, text, sizeof text, fallback);
    if (strncmp(text, "error ", 6) == 0) return atoi(text + 6);
    if (!there && fallback == NULL) return NOT_SUPPORTED;
    return nvml_copy(text, out, size);
}

void nvml_uuid(const char *prefix, char *out, size_t size) {
    char text[64] = "";
    FILE *source = fopen("/proc/sys/kernel/random/uuid", "r");
    if (source != NULL) {
        if (fgets(text, sizeof text, source) == NULL) text[0] = 0;
        fclose(source);
    }
    text[strcspn(text, "\n")] = 0;
    snprintf(out, size, "%s%s", prefix, text);
}

/* --- the system -------------------------------------------------------------------------- */

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER();
    return nvml_string(STANDIN_HOST, "driver_version", "595.45.04", out, size);
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    ENTER();
    return nvml_string(STANDIN_HOST, "nvml_version", "13.595.45.04", out, size);
}

static int cuda_version(int *out) {
    uint64_t value;
    int code = standin_reading(STANDIN_HOST, "cuda_version", 13020, &value);
    *out = (int)value;
    return code;
}

/* Files `confidential` (1: on) and `confidential_ready` (1: GPUs take work) of the machine. */
EXPORT int nvmlSystemGetConfComputeState(unsigned *out) {
    ENTER();
    out[0] = out[2] = 0;
    out[1] = (unsigned)standin_number(STANDIN_HOST, "confidential", 0);
    return SUCCESS;
}

EXPORT int nvmlSystemGetConfComputeGpusReadyState(unsigned *out) {
    ENTER();
    *out = (unsigned)standin_number(STANDIN_HOST, "confidential_ready", 0);
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER();
    return cuda_version(out);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER();
    return cuda_version(out);
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER();
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS);
    char text[STANDIN_TEXT], file[64];
    snprintf(file, sizeof file, "processes/%u", pid);
    for (int i = 0; i < count; i++) {
        if (!standin_text(gpus[i], file, text, sizeof text, NULL)) continue;
        int skip = 0;
        sscanf(text, "%*s %*s %*s %*s %n", &skip);
        return nvml_copy(text + skip, out, size);
    }
    if (standin_start_time(pid) == 0) return NOT_FOUND;
    snprintf(file, sizeof file, "/proc/%u/comm", pid);
    FILE *source = fopen(file, "r");
    if (source == NULL) return NOT_FOUND;
    int read = fgets(text, sizeof text, source) != NULL;
    fclose(source);
    if (!read) return NOT_FOUND;
    text[strcspn(text, "\n")] = 0;
    return nvml_copy(text, out, size);
}

/* --- identity ---------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetName(struct device *device, char *out, unsigned size) {
    ENTER_ANY(device);
    return nvml_string(device->gpu, "name", "STAND-IN", out, size);
}

EXPORT int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size) {
    ENTER_ANY(device);
    struct standin_ci part;
    if (device->gi == STANDIN_NONE) return nvml_string(device->gpu, "uuid", NULL, out, size);
    if (!standin_ci_read(device->gpu, device->gi, device->ci, &part)) return INVALID_ARGUMENT;
    return nvml_copy(part.uuid, out, size);
}

#define TEXT_READING(function, file)                                                                \
    EXPORT int function(struct device *device, char *out, unsigned size) {                          \
        ENTER_GPU(device);                                                                          \
        return nvml_string(device->gpu, file, NULL, out, size);                                     \
    }

TEXT_READING(nvmlDeviceGetSerial, "serial")
TEXT_READING(nvmlDeviceGetBoardPartNumber, "part_number")
TEXT_READING(nvmlDeviceGetVbiosVersion, "vbios")
TEXT_READING(nvmlDeviceGetInforomImageVersion, "inforom")

EXPORT int nvmlDeviceValidateInforom(struct device *device) {
    ENTER_GPU(device);
    uint64_t valid;
    int code = nvml_reading(device->gpu, "inforom_valid", 1, &valid);
    if (code) return code;
    return valid ? SUCCESS : CORRUPTED_INFOROM;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    ENTER_ANY(device);
    *major = (int)standin_number(device->gpu, "cc_major", 9);
    *minor = (int)standin_number(device->gpu, "cc_minor", 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetArchitecture(struct device *device, unsigned *out) {
    ENTER_ANY(device);
    return nvml_unsigned(device->gpu, "architecture", 9, out);
}

EXPORT int nvmlDeviceGetIndex(struct device *device, unsigned *out) {
    ENTER_ANY(device);
    *out = (unsigned)nvml_index(device->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNumaNodeId(struct device *device, int *out) {
    ENTER_GPU(device);
    uint64_t node;
    int code = nvml_reading(device->gpu, "numa_memory_node", 0, &node);
    if (!standin_exists(device->gpu, "numa_memory_node")) return NOT_SUPPORTED;
    *out = (int)node;
    return code;
}

void nvml_pci(int gpu, struct pci *out) {
    unsigned domain = 0, bus = 0, slot = 0;
    char text[STANDIN_TEXT];
    standin_text(gpu, "bus_id", text, sizeof text, NULL);
    sscanf(text, "%x:%x:%x", &domain, &bus, &slot);
    memset(out, 0, sizeof *out);
    out->domain = domain;
    out->bus = bus;
    out->device = slot;
    out->device_id = (unsigned)standin_number(gpu, "pci_device_id", 0x233010DE);
    out->subsystem_id = (unsigned)standin_number(gpu, "pci_subsystem_id", 0x10DE);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF,
             slot & 0x1F);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus, slot);
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out) {
    ENTER_GPU(device);
    nvml_pci(device->gpu, out);
    return SUCCESS;
}
