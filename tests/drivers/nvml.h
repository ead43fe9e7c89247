/* What the parts of the NVML stand-in share: error codes, handles and the way into every call.
 *
 * Layouts of structs are those that nvidia-ml-py passes; they stand where they are filled.
 */
#ifndef FLEET_NVML_H
#define FLEET_NVML_H

#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    CORRUPTED_INFOROM = 14,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25,
    UNKNOWN_ERROR = 999
};

/* A device handle: of a GPU, or of a MIG device (gi and ci are set). Handles of GPUs live as long
 * as the process. Those of MIG devices belong to an index and name whatever was last asked for
 * there: like the real ones they are used again for another device after a destroy. */
struct device {
    int gpu;
    uint32_t gi, ci;
    char uuid[STANDIN_TEXT]; /* of the GPU, when the handle was made */
    struct device *next;
};

struct gpu_instance {
    int gpu;
    uint32_t id;
};

struct compute_instance {
    int gpu;
    uint32_t gi, id;
};

struct process { /* nvmlProcessInfo_t of version 2 and 3 */
    unsigned pid;
    unsigned long long used;
    unsigned gi, ci;
};

struct pci { /* nvmlPciInfo_t of version 3 */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

/* Way into a call that names no GPU, a GPU, or either. Returns from the calling function. */
#define ENTER()                                                                                     \
    do {                                                                                            \
        int refused = nvml_enter(__func__);                                                         \
        if (refused) return refused;                                                                \
    } while (0)
#define ENTER_ANY(handle)                                                                           \
    do {                                                                                            \
        int refused = nvml_enter_device(__func__, handle);                                          \
        if (refused) return refused;                                                                \
    } while (0)
#define ENTER_GPU(handle)                                                                           \
    do {                                                                                            \
        ENTER_ANY(handle);                                                                          \
        if ((handle)->gi != STANDIN_NONE) return NOT_SUPPORTED;                                     \
    } while (0)
#define ENTER_AT(gpu)                                                                               \
    do {                                                                                            \
        int refused = nvml_enter_gpu(__func__, gpu);                                                \
        if (refused) return refused;                                                                \
    } while (0)

int nvml_enter(const char *function);
int nvml_enter_gpu(const char *function, int gpu);
int nvml_enter_device(const char *function, const struct device *device);

struct device *nvml_device(int gpu);
struct device *nvml_mig_device(int gpu, uint32_t gi, uint32_t ci);
int nvml_index(int gpu);
/* How often the library was shut down for good: what was made before is void. */
unsigned nvml_generation(void);

/* A reading, or its `_busy` twin while a context lives; the code of an "error <code>" file. */
int nvml_reading(int gpu, const char *name, uint64_t fallback, uint64_t *value);
/* The same into an unsigned int: SUCCESS, or a code. */
int nvml_unsigned(int gpu, const char *name, uint64_t fallback, unsigned *value);
/* A text, which an "error <code>" may replace. */
int nvml_string(int gpu, const char *name, const char *fallback, char *out, unsigned size);
int nvml_copy(const char *text, char *out, unsigned size);

int nvml_mig_on(int gpu);
/* Contexts and foreign processes: in an instance, a compute instance of it, or on the whole GPU. */
int nvml_in_use(int gpu, uint32_t gi, uint32_t ci);
/* Foreign processes of one list ("compute", "graphics", "mps"; NULL for all). */
int nvml_foreign(int gpu, const char *kind, struct process *out, int max);
void nvml_pci(int gpu, struct pci *out);
void nvml_uuid(const char *prefix, char *out, size_t size);

#endif
