/* NVML stand-in: event sets, and taking a GPU out of the driver and back. */
#include "nvml.h"

#include <sys/stat.h>
#include <time.h>

#define REGISTRATIONS 64
#define SUPPORTED 0xFD0Full /* what an H100-like part can report */

struct registration {
    int gpu;
    unsigned long long mask;
    long offset; /* up to where the events of the GPU were seen */
};

struct event_set {
    unsigned generation;
    int count;
    struct registration registrations[REGISTRATIONS];
};

struct event {
    struct device *device;
    unsigned long long type, value;
    unsigned gi, ci;
};

static long events_length(int gpu) {
    char path[STANDIN_PATH];
    struct stat facts;
    standin_path(path, sizeof path, gpu, "events");
    return stat(path, &facts) == 0 ? (long)facts.st_size : 0;
}

EXPORT int nvmlEventSetCreate(struct event_set **out) {
    ENTER();
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return UNKNOWN_ERROR;
    (*out)->generation = nvml_generation();
    return SUCCESS;
}

/* The real library would follow a pointer into what it has let go: here that ends the process. */
static void refuse_stale(const struct event_set *set) {
    if (set == NULL || set->generation == nvml_generation()) return;
    fputs("STAND-IN NVML: an event set from before nvmlShutdown was used\n", stderr);
    abort();
}

EXPORT int nvmlEventSetFree(struct event_set *set) {
    ENTER();
    refuse_stale(set);
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *out) {
    ENTER_GPU(device);
    uint64_t value;
    int code = nvml_reading(device->gpu, "events_supported", SUPPORTED, &value);
    *out = value;
    return code;
}

EXPORT int nvmlDeviceRegisterEvents(struct device *device, unsigned long long mask,
                                    struct event_set *set) {
    ENTER_GPU(device); /* MIG devices are refused: NOT_SUPPORTED */
    unsigned long long known = standin_number(device->gpu, "events_supported", SUPPORTED);
    refuse_stale(set);
    if (set == NULL || set->count == REGISTRATIONS) return INVALID_ARGUMENT;
    if (mask & ~known) return NOT_SUPPORTED;
    struct registration fresh = {device->gpu, mask, events_length(device->gpu)};
    set->registrations[set->count++] = fresh;
    return SUCCESS;
}

static int next_event(struct registration *from, struct event *out) {
    char path[STANDIN_PATH], line[STANDIN_TEXT];
    standin_path(path, sizeof path, from->gpu, "events");
    FILE *events = fopen(path, "r");
    if (events == NULL) return 0;
    int found = 0;
    fseek(events, from->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, events) != NULL) {
        if (strchr(line, '\n') == NULL) break; /* still being written */
        from->offset = ftell(events);
        memset(out, 0, sizeof *out);
        out->gi = out->ci = STANDIN_NONE;
        sscanf(line, "%llu %llu %u %u", &out->type, &out->value, &out->gi, &out->ci);
        found = (out->type & from->mask) != 0;
    }
    fclose(events);
    return found;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms) {
    ENTER();
    if (set == NULL) return INVALID_ARGUMENT;
    refuse_stale(set);
    long long deadline = now_ms() + timeout_ms;
    for (;;) {
        for (int i = 0; i < set->count; i++) {
            if (!next_event(&set->registrations[i], out)) continue;
            out->device = nvml_device(set->registrations[i].gpu);
            return SUCCESS;
        }
        if (now_ms() >= deadline) return TIMEOUT;
        struct timespec rest = {0, 10000000};
        nanosleep(&rest, NULL);
    }
}

/* --- drain, removal and discovery --------------------------------------------------------- */

static int at_address(const struct pci *wanted) {
    int gpus[STANDIN_GPUS], count = standin_numbers(STANDIN_HOST, "gpus", gpus, STANDIN_GPUS);
    for (int i = 0; i < count; i++) {
        struct pci found;
        nvml_pci(gpus[i], &found);
        if (found.domain == wanted->domain && found.bus == wanted->bus &&
            found.device == wanted->device)
            return gpus[i];
    }
    return -1;
}

EXPORT int nvmlDeviceModifyDrainState(struct pci *pci, unsigned state) {
    int gpu = at_address(pci);
    if (gpu < 0) return NOT_FOUND;
    ENTER_AT(gpu);
    return standin_write_number(gpu, "drain", state != 0) == 0 ? SUCCESS : UNKNOWN_ERROR;
}

EXPORT int nvmlDeviceQueryDrainState(struct pci *pci, unsigned *state) {
    int gpu = at_address(pci);
    if (gpu < 0) return NOT_FOUND;
    ENTER_AT(gpu);
    return nvml_unsigned(gpu, "drain", 0, state);
}

static int take_out(int gpu) {
    if (nvml_in_use(gpu, STANDIN_NONE, STANDIN_NONE)) return IN_USE;
    return standin_write_number(gpu, "removed", 1) == 0 ? SUCCESS : UNKNOWN_ERROR;
}

EXPORT int nvmlDeviceRemoveGpu(struct pci *pci) {
    int gpu = at_address(pci);
    if (gpu < 0) return NOT_FOUND;
    ENTER_AT(gpu);
    return take_out(gpu);
}

EXPORT int nvmlDeviceRemoveGpu_v2(struct pci *pci, unsigned gpu_state, unsigned link_state) {
    (void)gpu_state, (void)link_state;
    int gpu = at_address(pci);
    if (gpu < 0) return NOT_FOUND;
    ENTER_AT(gpu);
    return take_out(gpu);
}

EXPORT int nvmlDeviceDiscoverGpus(struct pci *pci) {
    ENTER();
    int gpus[STANDIN_GPUS], count = standin_numbers(STANDIN_HOST, "gpus", gpus, STANDIN_GPUS);
    for (int i = 0; i < count; i++) {
        struct pci found;
        nvml_pci(gpus[i], &found);
        if (found.domain == pci->domain && standin_number(gpus[i], "removed", 0)) {
            standin_remove(gpus[i], "removed");
            standin_remove(gpus[i], "drain");
        }
    }
    return SUCCESS;
}
