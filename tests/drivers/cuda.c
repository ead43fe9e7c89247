/* libcuda.so.1 without hardware: memory is a file, kernels are executed by cuda_ptx.c.
 *
 * Only what fleet/devices/nvidia/cuda.py calls, found through cuGetProcAddress_v2 as the binding
 * finds it. Work is done when it is queued; with gpus/<n>/bytes_per_s it is *finished* only when
 * memory of that speed would be, so that events are worth polling. Files beside those of standin.h:
 *
 *   gpus/<n>/context_bytes      taken by a primary context (524288)
 *   gpus/<n>/allocation_limit   bytes that one process gets at most
 *   gpus/<n>/lazy_bytes         taken by the first memset, by the first copy to the device and by the
 *                               first copy from it: with nothing left these fail
 *   gpus/<n>/stack_bytes        the stack of a thread as last asked for, written by this library
 *   gpus/<n>/dirty              VRAM offsets, one a line, where a stored byte comes out with a bit wrong
 *   gpus/<n>/bytes_per_s        speed of its memory
 *   gpus/<n>/compute_mode       0 default, 2 prohibited, 3 exclusive process
 *   gpus/<n>/multiprocessors    (4), gpus/<n>/shared_bytes: most dynamic shared memory (232448)
 *   gpus/<n>/lost               every call says 999
 *   cuda_lacks                  names, one a line, that this library does not have
 *   <CUDA_MPS_PIPE_DIRECTORY>/control   an MPS daemon: each process becomes its client, with at most
 *                                       the bytes in <...>/memory_limit; host/tmp/nvidia-mps if unset
 */
#define _GNU_SOURCE
#include "standin.h"
#include "cuda_ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, UNAVAILABLE = 46,
    NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_PTX = 218,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, UNKNOWN = 999
};

#define MAX_ALLOCATIONS STANDIN_RECORDS
#define MAX_DIRTY 4096
#define PLAIN_SHARED 49152u
#define FRAME 65536u /* memory is handed out in frames of this size */
#define VISIBLE 64

struct allocation { CUdeviceptr address; uint64_t offset, length; };

struct device { /* a GPU or a MIG device; one for each that ever was visible */
    int gpu;
    uint32_t gi, ci;
    char uuid[STANDIN_TEXT];
    int retained, context_file, sticky;
    unsigned char *memory;
    uint64_t total, begin, end, taken, overhead;
    uint64_t lazy[3];
    int warm[3];
    struct allocation allocations[MAX_ALLOCATIONS];
    int count;
    uint64_t dirty[MAX_DIRTY];
    int dirty_count;
};

struct function { struct ptx_kernel *kernel; unsigned shared_most; };
struct module { struct ptx_module *text; struct function functions[32]; int count; };
struct stream { double ready_at; };
struct event { double at; int recorded; };

static struct device *devices[STANDIN_GPUS * 8];
static int device_count;
static struct device *visible[VISIBLE];
static int visible_count, initialised;
static struct device *current;

/* --- every call -------------------------------------------------------------------------- */

static int is_sticky(CUresult code) {
    static const int CODES[] = {214, 220, 226, 700, 702, 709, 710, 714, 715,
                                716, 717, 718, 719, 721, 810, 911};
    for (size_t i = 0; i < sizeof CODES / sizeof CODES[0]; i++)
        if (CODES[i] == code) return 1;
    return 0;
}

static CUresult stick(CUresult code) {
    if (current != NULL && is_sticky(code)) current->sticky = code;
    return code;
}

/* What a call says before it does anything. */
static CUresult enter(const char *function, int needs_context) {
    CUresult struck = standin_fault(function, current != NULL ? current->uuid : NULL);
    if (struck != OK) return stick(struck);
    if (!initialised) return NOT_INITIALIZED;
    if (current != NULL && standin_number(current->gpu, "lost", 0) != 0) return UNKNOWN;
    if (current != NULL && current->sticky) return current->sticky;
    return needs_context && (current == NULL || current->retained == 0) ? INVALID_CONTEXT : OK;
}

#define ENTER(context)                                     \
    do {                                                   \
        CUresult entered = enter(__func__, context);       \
        if (entered != OK) return entered;                 \
    } while (0)

static double now(void) {
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    return (double)clock.tv_sec + (double)clock.tv_nsec * 1e-9;
}

/* --- which devices are visible ------------------------------------------------------------ */

static struct device *device_of(int gpu, uint32_t gi, uint32_t ci, const char *uuid) {
    for (int i = 0; i < device_count; i++)
        if (strcmp(devices[i]->uuid, uuid) == 0) return devices[i];
    struct device *fresh = calloc(1, sizeof *fresh);
    fresh->gpu = gpu;
    fresh->gi = gi;
    fresh->ci = ci;
    snprintf(fresh->uuid, sizeof fresh->uuid, "%s", uuid);
    return devices[device_count++] = fresh;
}

/* A GPU as CUDA sees it: with MIG on its first compute instance, or nothing. */
static struct device *whole(int gpu) {
    char uuid[STANDIN_TEXT];
    struct standin_gi instances[64];
    struct standin_ci parts[16];
    if (standin_number(gpu, "mig_current", 0) == 0) {
        standin_text(gpu, "uuid", uuid, sizeof uuid, NULL);
        return device_of(gpu, STANDIN_NONE, STANDIN_NONE, uuid);
    }
    int found = standin_gi_list(gpu, instances, 64);
    for (int i = 0; i < found; i++)
        if (standin_ci_list(gpu, instances[i].id, parts, 16) > 0)
            return device_of(gpu, instances[i].id, parts[0].id, parts[0].uuid);
    return NULL;
}

/* One entry of CUDA_VISIBLE_DEVICES: a UUID, the beginning of one, or an index. */
static struct device *entry(const char *text) {
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS), gpu, match = -1;
    uint32_t gi, ci;
    char uuid[STANDIN_TEXT], *end;
    if (strncmp(text, "MIG-", 4) == 0)
        return standin_find(text, &gpu, &gi, &ci) ? device_of(gpu, gi, ci, text) : NULL;
    long index = strtol(text, &end, 10);
    if (text[0] != 0 && *end == 0) return index < 0 || index >= count ? NULL : whole(gpus[index]);
    for (int i = 0; i < count && strncmp(text, "GPU-", 4) == 0; i++) {
        standin_text(gpus[i], "uuid", uuid, sizeof uuid, NULL);
        if (strncmp(uuid, text, strlen(text)) != 0) continue;
        if (match >= 0) return NULL; /* ambiguous */
        match = gpus[i];
    }
    return match < 0 ? NULL : whole(match);
}

static void look(void) {
    char wanted[4096], *rest = wanted, *text;
    const char *said = getenv("CUDA_VISIBLE_DEVICES");
    int gpus[STANDIN_GPUS], count = standin_gpus(gpus, STANDIN_GPUS);
    visible_count = 0;
    if (said == NULL) {
        for (int i = 0; i < count; i++) {
            struct device *device = whole(gpus[i]);
            if (device != NULL && visible_count < VISIBLE) visible[visible_count++] = device;
        }
        return;
    }
    snprintf(wanted, sizeof wanted, "%s", said);
    while ((text = strsep(&rest, ",")) != NULL && visible_count < VISIBLE) {
        struct device *device = entry(text);
        if (device == NULL) return; /* what comes after an invalid entry is not seen */
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == device) {
                visible_count = 0; /* a device named twice: none */
                return;
            }
        visible[visible_count++] = device;
    }
}

CUresult cuInit(unsigned flags) {
    (void)flags;
    CUresult struck = standin_fault("cuInit", NULL);
    if (struck != OK) return struck;
    if (standin_root() == NULL) return NO_DEVICE;
    look();
    initialised = visible_count > 0;
    return visible_count > 0 ? OK : NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version) {
    *version = (int)standin_number(STANDIN_HOST, "cuda_version", 13000);
    return OK;
}

CUresult cuDeviceGetCount(int *count) {
    ENTER(0);
    *count = visible_count;
    return OK;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(0);
    if (ordinal < 0 || ordinal >= visible_count) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

static struct device *at(CUdevice device) {
    return device >= 0 && device < visible_count ? visible[device] : NULL;
}

CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    ENTER(0);
    if (at(device) == NULL) return INVALID_DEVICE;
    const char *text = strchr(at(device)->uuid, '-');
    for (int i = 0; i < 16 && text != NULL; i++) {
        unsigned byte = 0;
        while (*text == '-') text++;
        if (sscanf(text, "%2x", &byte) != 1) break;
        uuid[i] = (unsigned char)byte;
        text += 2;
    }
    return OK;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(0);
    if (at(device) == NULL || length < 1) return INVALID_DEVICE;
    char text[STANDIN_TEXT];
    standin_text(at(device)->gpu, "name", text, sizeof text, "STAND-IN");
    snprintf(name, (size_t)length, "%s", text);
    return OK;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER(0);
    if (at(device) == NULL) return INVALID_DEVICE;
    int gpu = at(device)->gpu;
    switch (attribute) {
    case 16: *value = (int)standin_number(gpu, "multiprocessors", 4); return OK;
    case 38: *value = 50 << 20; return OK; /* second-level cache */
    case 75: *value = (int)standin_number(gpu, "cc_major", 9); return OK;
    case 76: *value = (int)standin_number(gpu, "cc_minor", 0); return OK;
    case 97: *value = (int)standin_number(gpu, "shared_bytes", 232448); return OK;
    default: return INVALID_VALUE;
    }
}

/* --- contexts ---------------------------------------------------------------------------- */

/* The directory of an MPS daemon that would take this process in, or "". */
static void mps(char *directory, size_t size) {
    char control[STANDIN_PATH + 16];
    const char *said = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (said != NULL) snprintf(directory, size, "%s", said);
    else standin_path(directory, size, STANDIN_HOST, "host/tmp/nvidia-mps");
    snprintf(control, sizeof control, "%s/control", directory);
    if (access(control, F_OK) != 0) directory[0] = 0;
}

static uint64_t most_bytes(const struct device *device) {
    char directory[STANDIN_PATH], path[STANDIN_PATH + 16];
    uint64_t most = standin_number(device->gpu, "allocation_limit", UINT64_MAX);
    mps(directory, sizeof directory);
    if (directory[0] == 0) return most;
    snprintf(path, sizeof path, "%s/memory_limit", directory);
    FILE *file = fopen(path, "re");
    unsigned long long limit;
    if (file == NULL) return most;
    if (fscanf(file, "%llu", &limit) == 1 && limit < most) most = limit;
    fclose(file);
    return most;
}

/* Compute mode and MPS decide whether this process may come in. */
static CUresult admitted(const struct device *device) {
    struct standin_context others[256];
    uint64_t mode = standin_number(device->gpu, "compute_mode", 0);
    if (mode == 2) return UNAVAILABLE;
    if (mode != 3) return OK;
    int count = standin_contexts(device->gpu, others, 256);
    for (int i = 0; i < count; i++)
        if (others[i].pid != (uint32_t)getpid()) return UNAVAILABLE;
    return OK;
}

static CUresult come_in(struct device *device) {
    uint64_t reserved, bytes = standin_number(device->gpu, "context_bytes", 524288);
    bytes = (bytes + FRAME - 1) / FRAME * FRAME;
    CUresult refused = admitted(device);
    if (refused != OK) return refused;
    if (standin_range(device->gpu, device->gi, &device->begin, &device->end, &reserved) != 0)
        return NO_DEVICE;
    device->end -= reserved;
    device->memory = standin_memory(device->gpu, &device->total);
    if (device->memory == NULL) return UNKNOWN;
    device->context_file = standin_enter(device->gpu, device->gi, device->ci);
    if (bytes == 0) return OK;
    if (standin_allocate(device->gpu, device->gi, device->begin, device->end, bytes, FRAME,
                         &device->overhead) == 0)
        return OK;
    standin_leave(device->gpu, device->context_file);
    standin_unmap(device->memory, device->total);
    return OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRetain(void **context, CUdevice number) {
    ENTER(0);
    struct device *device = at(number);
    if (device == NULL) return INVALID_DEVICE;
    if (device->retained == 0) {
        CUresult refused = come_in(device);
        if (refused != OK) return refused;
    }
    device->retained++;
    *context = device;
    return OK;
}

/* Works after a sticky error too: in truth the process ends soon after. */
CUresult cuDevicePrimaryCtxRelease(CUdevice number) {
    struct device *device = at(number);
    CUresult struck = standin_fault(__func__, device != NULL ? device->uuid : NULL);
    if (struck != OK) return struck;
    if (device == NULL || device->retained == 0) return INVALID_CONTEXT;
    if (--device->retained > 0) return OK;
    for (int i = 0; i < device->count; i++)
        standin_release(device->gpu, device->allocations[i].offset);
    if (standin_number(device->gpu, "context_bytes", 524288) != 0)
        standin_release(device->gpu, device->overhead);
    for (int i = 0; i < 3; i++) {
        if (device->warm[i]) standin_release(device->gpu, device->lazy[i]);
        device->warm[i] = 0;
    }
    standin_leave(device->gpu, device->context_file);
    standin_unmap(device->memory, device->total);
    device->count = device->sticky = 0;
    device->taken = 0;
    device->memory = NULL;
    if (current == device) current = NULL;
    return OK;
}

CUresult cuCtxSetCurrent(void *context) {
    ENTER(0);
    current = context;
    return OK;
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    ENTER(1);
    if (limit != 0) return INVALID_VALUE;
    standin_write_number(current->gpu, "stack_bytes", value);
    return OK;
}

/* --- memory ------------------------------------------------------------------------------ */

CUresult cuMemGetInfo(size_t *available, size_t *total) {
    ENTER(1);
    uint64_t begin, end, reserved;
    if (standin_range(current->gpu, current->gi, &begin, &end, &reserved) != 0) return UNKNOWN;
    *total = end - begin;
    *available = end - begin - reserved - standin_used(current->gpu, current->gi);
    return OK;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
    ENTER(1);
    uint64_t offset, length = (size + FRAME - 1) / FRAME * FRAME;
    if (size == 0) return INVALID_VALUE;
    if (current->count == MAX_ALLOCATIONS || length > most_bytes(current) - current->taken)
        return OUT_OF_MEMORY;
    if (standin_allocate(current->gpu, current->gi, current->begin, current->end, length, FRAME,
                         &offset) != 0)
        return OUT_OF_MEMORY;
    *address = (CUdeviceptr)(uintptr_t)current->memory + offset;
    struct allocation fresh = {*address, offset, length};
    current->allocations[current->count++] = fresh;
    current->taken += length;
    return OK;
}

CUresult cuMemFree(CUdeviceptr address) {
    ENTER(1);
    for (int i = 0; i < current->count; i++) {
        if (current->allocations[i].address != address) continue;
        standin_release(current->gpu, current->allocations[i].offset);
        current->taken -= current->allocations[i].length;
        current->allocations[i] = current->allocations[--current->count];
        return OK;
    }
    return INVALID_VALUE;
}

static int allowed(void *state, uint64_t low, uint64_t high) {
    const struct device *device = state;
    for (int i = 0; i < device->count; i++) {
        const struct allocation *one = &device->allocations[i];
        if (low >= one->address && high <= one->address + one->length) return low <= high;
    }
    return 0;
}

static void stored(void *state, uint64_t low, uint64_t high) {
    const struct device *device = state;
    uint64_t base = (uint64_t)(uintptr_t)device->memory;
    for (int i = 0; i < device->dirty_count; i++)
        if (base + device->dirty[i] >= low && base + device->dirty[i] < high)
            device->memory[device->dirty[i]] ^= 1;
}

static void read_dirty(struct device *device) {
    char path[STANDIN_PATH];
    unsigned long long offset;
    standin_path(path, sizeof path, device->gpu, "dirty");
    device->dirty_count = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    while (device->dirty_count < MAX_DIRTY && fscanf(file, "%lli", (long long *)&offset) == 1)
        if (offset < device->total) device->dirty[device->dirty_count++] = offset;
    fclose(file);
}

/* The stream is busy for as long as memory of that speed would be. */
static void busy(struct stream *stream, uint64_t bytes) {
    uint64_t speed = standin_number(current->gpu, "bytes_per_s", 0);
    double start = now();
    if (stream == NULL || speed == 0) return;
    if (stream->ready_at > start) start = stream->ready_at;
    stream->ready_at = start + (double)bytes / (double)speed;
}

/* What a driver sets up when it does something of a kind for the first time. */
static CUresult first(int kind) {
    uint64_t offset, wanted = standin_number(current->gpu, "lazy_bytes", 0);
    if (wanted == 0 || current->warm[kind]) return OK;
    if (standin_allocate(current->gpu, current->gi, current->begin, current->end, wanted, FRAME,
                         &offset) != 0)
        return OUT_OF_MEMORY;
    current->lazy[kind] = offset;
    current->warm[kind] = 1;
    return OK;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, void *stream) {
    ENTER(1);
    if (first(0) != OK) return OUT_OF_MEMORY;
    if (!allowed(current, address, address + size)) return INVALID_VALUE;
    memset((void *)(uintptr_t)address, value, size);
    read_dirty(current);
    stored(current, address, address + size);
    busy(stream, size);
    return OK;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr address, const void *from, size_t size, void *stream) {
    ENTER(1);
    if (first(1) != OK) return OUT_OF_MEMORY;
    if (!allowed(current, address, address + size)) return INVALID_VALUE;
    memcpy((void *)(uintptr_t)address, from, size);
    read_dirty(current);
    stored(current, address, address + size);
    busy(stream, size);
    return OK;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr address, size_t size, void *stream) {
    ENTER(1);
    if (first(2) != OK) return OUT_OF_MEMORY;
    if (!allowed(current, address, address + size)) return INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)address, size);
    busy(stream, size);
    return OK;
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    ENTER(1);
    *address = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return *address != NULL ? OK : OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void *address) {
    ENTER(1);
    free(address);
    return OK;
}

/* --- kernels ----------------------------------------------------------------------------- */

CUresult cuModuleLoadData(void **out, const void *image) {
    ENTER(1);
    char problem[256];
    struct ptx_module *text = ptx_parse(image, problem, sizeof problem);
    if (text == NULL) {
        fprintf(stderr, "stand-in libcuda: PTX not understood, %s\n", problem);
        return INVALID_PTX;
    }
    struct module *module = calloc(1, sizeof *module);
    module->text = text;
    *out = module;
    return OK;
}

CUresult cuModuleUnload(void *handle) {
    ENTER(1);
    struct module *module = handle;
    ptx_free(module->text);
    free(module);
    return OK;
}

CUresult cuModuleGetFunction(void **out, void *handle, const char *name) {
    ENTER(1);
    struct module *module = handle;
    struct ptx_kernel *kernel = ptx_find(module->text, name);
    if (kernel == NULL || module->count == 32) return NOT_FOUND;
    struct function *function = &module->functions[module->count++];
    function->kernel = kernel;
    function->shared_most = PLAIN_SHARED;
    *out = function;
    return OK;
}

CUresult cuFuncSetAttribute(void *handle, int attribute, int value) {
    ENTER(1);
    struct function *function = handle;
    if (attribute != 8 || value < 0 ||
        (uint64_t)value > standin_number(current->gpu, "shared_bytes", 232448))
        return INVALID_VALUE;
    function->shared_most = (unsigned)value;
    return OK;
}

struct shape { unsigned x, y, z; };

static CUresult launch(struct function *function, struct shape grid, struct shape block,
                       unsigned shared, void *stream, void **parameters) {
    unsigned demanded = ptx_block(function->kernel);
    if (grid.x == 0 || grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 ||
        block.x == 0 || block.x > 1024 || (demanded != 0 && block.x != demanded) ||
        shared > function->shared_most)
        return INVALID_VALUE;
    read_dirty(current);
    struct ptx_launch run = {
        .grid = grid.x, .block = block.x, .shared_bytes = shared, .parameters = parameters,
        .memory = {current, allowed, stored},
    };
    if (ptx_run(function->kernel, &run) != 0) return stick(ILLEGAL_ADDRESS);
    busy(stream, run.bytes);
    return OK;
}

CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                        void **extra) {
    (void)extra;
    ENTER(1);
    struct shape grid = {gx, gy, gz}, block = {bx, by, bz};
    return launch(function, grid, block, shared, stream, parameters);
}

/* --- streams and events ------------------------------------------------------------------ */

CUresult cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    ENTER(1);
    *out = calloc(1, sizeof(struct stream));
    return OK;
}

CUresult cuStreamDestroy(void *stream) {
    ENTER(1);
    free(stream);
    return OK;
}

CUresult cuStreamQuery(void *handle) {
    ENTER(1);
    struct stream *stream = handle;
    return stream != NULL && now() < stream->ready_at ? NOT_READY : OK;
}

CUresult cuEventCreate(void **out, unsigned flags) {
    (void)flags;
    ENTER(1);
    *out = calloc(1, sizeof(struct event));
    return OK;
}

CUresult cuEventDestroy(void *event) {
    ENTER(1);
    free(event);
    return OK;
}

CUresult cuEventRecord(void *handle, void *stream) {
    ENTER(1);
    struct event *event = handle;
    double ready = stream != NULL ? ((struct stream *)stream)->ready_at : 0, moment = now();
    event->at = ready > moment ? ready : moment;
    event->recorded = 1;
    return OK;
}

CUresult cuEventQuery(void *handle) {
    ENTER(1);
    struct event *event = handle;
    return event->recorded && now() < event->at ? NOT_READY : OK;
}

CUresult cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    ENTER(1);
    *milliseconds = (float)((((struct event *)end)->at - ((struct event *)start)->at) * 1e3);
    return OK;
}

/* --- how the binding finds all this ------------------------------------------------------ */

CUresult cuGetErrorString(CUresult error, const char **text) {
    static char said[32];
    snprintf(said, sizeof said, "stand-in error %d", error);
    *text = said;
    return OK;
}

CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                             int *status);

static const struct { const char *name; void *function; } FUNCTIONS[] = {
#define ROW(name) {#name, (void *)name}
    ROW(cuInit), ROW(cuDriverGetVersion), ROW(cuDeviceGetCount), ROW(cuDeviceGet),
    ROW(cuDeviceGetUuid), ROW(cuDeviceGetName), ROW(cuDeviceGetAttribute),
    ROW(cuDevicePrimaryCtxRetain), ROW(cuDevicePrimaryCtxRelease), ROW(cuCtxSetCurrent),
    ROW(cuCtxSetLimit),
    ROW(cuMemGetInfo), ROW(cuMemAlloc), ROW(cuMemFree), ROW(cuMemsetD8Async),
    ROW(cuMemcpyHtoDAsync), ROW(cuMemcpyDtoHAsync), ROW(cuMemHostAlloc), ROW(cuMemFreeHost),
    ROW(cuModuleLoadData), ROW(cuModuleUnload), ROW(cuModuleGetFunction), ROW(cuFuncSetAttribute),
    ROW(cuLaunchKernel), ROW(cuStreamCreate), ROW(cuStreamDestroy), ROW(cuStreamQuery),
    ROW(cuEventCreate), ROW(cuEventDestroy), ROW(cuEventRecord), ROW(cuEventQuery),
    ROW(cuEventElapsedTime), ROW(cuGetErrorString), ROW(cuGetErrorName),
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2}, ROW(cuGetProcAddress_v2),
#undef ROW
};

/* The binding asks by the bare name and the CUDA version whose variant it means. */
CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                             int *status) {
    (void)version;
    (void)flags;
    char lacks[STANDIN_TEXT] = "";
    *out = NULL;
    standin_text(STANDIN_HOST, "cuda_lacks", lacks, sizeof lacks, NULL);
    if (strcmp(lacks, symbol) == 0) return NOT_FOUND;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof FUNCTIONS[0]; i++)
        if (strcmp(FUNCTIONS[i].name, symbol) == 0) *out = FUNCTIONS[i].function;
    if (status != NULL) *status = *out != NULL ? 0 : 1; /* found, or no such symbol */
    return *out != NULL ? OK : NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
