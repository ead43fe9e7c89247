/* NVML stand-in: multi-instance mode, GPU instances and compute instances. */
#include "nvml.h"

#include <sys/stat.h>

#define PROFILES 0x12       /* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define COMPUTE_PROFILES 9  /* NVML_COMPUTE_INSTANCE_PROFILE_COUNT */
#define MIG_DEVICES_MAX 7
#define INSTANCES 32
#define PARTS 8

struct profile {
    unsigned enumeration, id, slices, memory_slices, starts[16];
    int places;
    unsigned long long memory_mib;
    char name[64];
};

struct placement {
    unsigned start, size;
};

static struct gpu_instance gi_handles[STANDIN_GPUS][INSTANCES];
static struct compute_instance ci_handles[STANDIN_GPUS][INSTANCES][PARTS];

int nvml_mig_on(int gpu) { return standin_number(gpu, "mig_current", 0) != 0; }

/* --- mode -------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    ENTER_GPU(device);
    if (!standin_number(device->gpu, "mig_capable", 0)) return NOT_SUPPORTED;
    int code = nvml_unsigned(device->gpu, "mig_current", 0, current);
    return code ? code : nvml_unsigned(device->gpu, "mig_pending", *current, pending);
}

static unsigned activation(int gpu, unsigned mode) {
    struct standin_gi instance;
    if (standin_exists(gpu, "mig_activation")) return (unsigned)standin_number(gpu, "mig_activation", 0);
    if (mode == (unsigned)nvml_mig_on(gpu)) return SUCCESS;
    if (nvml_in_use(gpu, STANDIN_NONE, STANDIN_NONE)) return IN_USE;
    if (standin_gi_list(gpu, &instance, 1) > 0) return IN_USE;
    return standin_number(gpu, "mig_online", 0) ? SUCCESS : RESET_REQUIRED;
}

/* The outcome is a value, not the return code: SUCCESS here is no success there. */
EXPORT int nvmlDeviceSetMigMode(struct device *device, unsigned mode, unsigned *status) {
    ENTER_GPU(device);
    int gpu = device->gpu;
    if (!standin_number(gpu, "mig_capable", 0)) return NOT_SUPPORTED;
    if (mode > 1) return INVALID_ARGUMENT;
    *status = activation(gpu, mode);
    standin_write_number(gpu, "mig_pending", mode);
    if (*status != SUCCESS || mode == (unsigned)nvml_mig_on(gpu)) return SUCCESS;
    standin_write_number(gpu, "mig_current", mode);
    if (standin_exists(gpu, "minor_after_mig"))
        standin_write_number(gpu, "minor", standin_number(gpu, "minor_after_mig", 0));
    return SUCCESS;
}

/* --- profiles ---------------------------------------------------------------------------- */

static int profiles(int gpu, struct profile *out, int max) {
    char text[8192], *rest, *line;
    int count = 0;
    standin_whole(gpu, "mig_profiles", text, sizeof text);
    for (line = strtok_r(text, "\n", &rest); line != NULL && count < max;
         line = strtok_r(NULL, "\n", &rest)) {
        struct profile *profile = &out[count];
        char starts[128] = "", *at = starts, *end;
        if (sscanf(line, "%u %u %63s %u %u %llu %127s", &profile->enumeration, &profile->id,
                   profile->name, &profile->slices, &profile->memory_slices, &profile->memory_mib,
                   starts) != 7)
            continue;
        profile->places = 0;
        for (; profile->places < 16; at = end + 1) {
            profile->starts[profile->places] = (unsigned)strtoul(at, &end, 10);
            if (end == at) break;
            profile->places++;
            if (*end != ',') break;
        }
        count++;
    }
    return count;
}

static int profile_by_id(int gpu, unsigned id, struct profile *out) {
    struct profile found[PROFILES];
    int count = profiles(gpu, found, PROFILES);
    for (int i = 0; i < count; i++)
        if (found[i].id == id) {
            *out = found[i];
            return 1;
        }
    return 0;
}

static unsigned slices_of_all(int gpu) {
    struct profile found[PROFILES];
    int count = profiles(gpu, found, PROFILES);
    unsigned most = 0;
    for (int i = 0; i < count; i++)
        if (found[i].slices > most) most = found[i].slices;
    return most;
}

struct gi_profile { /* nvmlGpuInstanceProfileInfo_v2_t */
    unsigned version, id, p2p, slices, instances, processors, copy_engines, decoders, encoders, jpegs,
        ofas;
    unsigned long long memory_mib;
    char name[96];
};

struct gi_profile_v1 {
    unsigned id, p2p, slices, instances, processors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
};

static int describe(struct device *device, unsigned enumeration, struct gi_profile *out) {
    struct profile found[PROFILES];
    if (enumeration >= PROFILES) return INVALID_ARGUMENT;
    if (!standin_number(device->gpu, "mig_capable", 0)) return NOT_SUPPORTED;
    int count = profiles(device->gpu, found, PROFILES);
    for (int i = 0; i < count; i++) {
        if (found[i].enumeration != enumeration) continue;
        unsigned version = out->version;
        memset(out, 0, sizeof *out);
        out->version = version;
        out->id = found[i].id;
        out->slices = found[i].slices;
        out->instances = (unsigned)found[i].places;
        out->processors = 16 * found[i].slices;
        out->copy_engines = out->decoders = out->jpegs = found[i].slices;
        out->memory_mib = found[i].memory_mib;
        snprintf(out->name, sizeof out->name, "MIG %s", found[i].name);
        return SUCCESS;
    }
    return NOT_SUPPORTED; /* a hole: the walk goes on */
}

EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned enumeration,
                                                struct gi_profile *out) {
    ENTER_GPU(device);
    if (out->version != 0x02000098) return VERSION_MISMATCH;
    return describe(device, enumeration, out);
}

EXPORT int nvmlDeviceGetGpuInstanceProfileInfo(struct device *device, unsigned enumeration,
                                               struct gi_profile_v1 *out) {
    struct gi_profile found;
    ENTER_GPU(device);
    int code = describe(device, enumeration, &found);
    if (code) return code;
    memcpy(out, &found.id, offsetof(struct gi_profile_v1, memory_mib));
    out->memory_mib = found.memory_mib;
    return SUCCESS;
}

/* --- capabilities ------------------------------------------------------------------------ */

/* Node and proc entry that let a container open an instance: below host/, as tree.py lays it out. */
static void grant(int gpu, uint32_t gi, uint32_t ci, int there) {
    char node[128], entry[160], place[64] = "", text[96], path[STANDIN_PATH];
    unsigned minor = (unsigned)standin_number(gpu, "minor", 0), number = 3 + (minor * 15 + gi) * 9;
    if (!standin_exists(STANDIN_HOST, "host/dev/nvidia-caps")) return;
    if (ci != STANDIN_NONE) {
        number += 1 + ci;
        snprintf(place, sizeof place, "/ci%u", ci);
    }
    snprintf(node, sizeof node, "host/dev/nvidia-caps/nvidia-cap%u", number);
    snprintf(entry, sizeof entry, "host/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u%s/access",
             minor, gi, place);
    if (!there) {
        standin_remove(STANDIN_HOST, node);
        standin_remove(STANDIN_HOST, entry);
        return;
    }
    standin_path(path, sizeof path, STANDIN_HOST, entry);
    for (char *slash = strstr(path, "/host/") + 6; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
             number);
    standin_write(STANDIN_HOST, entry, text);
    standin_write(STANDIN_HOST, node, "");
}

/* --- GPU instances ----------------------------------------------------------------------- */

static int partitioned(struct device *device, unsigned id, struct profile *profile) {
    if (!nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    return profile_by_id(device->gpu, id, profile) ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned id,
                                                         struct placement *out, unsigned *count) {
    struct profile profile;
    ENTER_GPU(device);
    int code = partitioned(device, id, &profile);
    if (code) return code;
    unsigned room = out == NULL ? 0 : *count;
    *count = (unsigned)profile.places;
    if (out == NULL) return SUCCESS;
    if (room < *count) return INSUFFICIENT_SIZE;
    for (int i = 0; i < profile.places; i++) {
        out[i].start = profile.starts[i];
        out[i].size = profile.memory_slices;
    }
    return SUCCESS;
}

/* Memory slices that instances hold, as bits; their compute slices are added up in `used`. */
static uint64_t taken(int gpu, unsigned *used) {
    struct standin_gi found[INSTANCES];
    int count = standin_gi_list(gpu, found, INSTANCES);
    uint64_t bits = 0;
    *used = 0;
    for (int i = 0; i < count; i++) {
        struct profile profile;
        bits |= ((1ull << found[i].size) - 1) << found[i].start;
        if (profile_by_id(gpu, found[i].profile, &profile)) *used += profile.slices;
    }
    return bits;
}

static int fits(const struct profile *profile, unsigned start, uint64_t bits) {
    uint64_t wanted = ((1ull << profile->memory_slices) - 1) << start;
    return (bits & wanted) == 0;
}

EXPORT int nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *device, unsigned id,
                                                     unsigned *count) {
    struct profile profile;
    unsigned used;
    ENTER_GPU(device);
    int code = partitioned(device, id, &profile);
    if (code) return code;
    uint64_t bits = taken(device->gpu, &used);
    unsigned all = slices_of_all(device->gpu);
    *count = 0;
    for (int i = 0; i < profile.places; i++) {
        if (!fits(&profile, profile.starts[i], bits) || used + profile.slices > all) continue;
        bits |= ((1ull << profile.memory_slices) - 1) << profile.starts[i];
        used += profile.slices;
        ++*count;
    }
    return SUCCESS;
}

static struct gpu_instance *gi_handle(int gpu, uint32_t id) {
    struct gpu_instance *handle = &gi_handles[gpu][id % INSTANCES];
    handle->gpu = gpu;
    handle->id = id;
    return handle;
}

static void write_instance(int gpu, uint32_t id, const struct profile *profile, unsigned start) {
    char path[STANDIN_PATH], name[64], uuid[STANDIN_TEXT];
    standin_path(path, sizeof path, gpu, "gi");
    mkdir(path, 0755);
    snprintf(name, sizeof name, "gi/%u", id);
    standin_path(path, sizeof path, gpu, name);
    mkdir(path, 0755);
    snprintf(name, sizeof name, "gi/%u/start", id);
    standin_write_number(gpu, name, start);
    snprintf(name, sizeof name, "gi/%u/size", id);
    standin_write_number(gpu, name, profile->memory_slices);
    nvml_uuid("GI-", uuid, sizeof uuid);
    snprintf(name, sizeof name, "gi/%u/uuid", id);
    standin_write(gpu, name, uuid);
    snprintf(name, sizeof name, "gi/%u/profile", id); /* last: with it the instance is there */
    standin_write_number(gpu, name, profile->id);
    grant(gpu, id, STANDIN_NONE, 1);
}

/* Ids are not counted up: small instances get large numbers, the whole GPU gets 0. */
static uint32_t free_id(int gpu, const struct profile *profile) {
    uint32_t slices = (uint32_t)standin_number(gpu, "slices", 8);
    struct standin_gi found;
    uint32_t id = slices / profile->memory_slices - 1;
    while (standin_gi_read(gpu, id, &found)) id++;
    return id;
}

static int create(struct device *device, unsigned id, const struct placement *wanted,
                  struct gpu_instance **out) {
    struct profile profile;
    unsigned used;
    int code = partitioned(device, id, &profile), gpu = device->gpu, result = INSUFFICIENT_RESOURCES;
    if (code) return code;
    int lock = standin_lock(gpu, "mig");
    uint64_t bits = taken(gpu, &used);
    if (wanted != NULL) result = INVALID_ARGUMENT;
    for (int i = 0; i < profile.places; i++) {
        if (wanted != NULL && profile.starts[i] != wanted->start) continue;
        result = INSUFFICIENT_RESOURCES; /* also what an occupied placement is called */
        if (!fits(&profile, profile.starts[i], bits)) continue;
        if (used + profile.slices > slices_of_all(gpu)) continue;
        uint32_t fresh = free_id(gpu, &profile);
        write_instance(gpu, fresh, &profile, profile.starts[i]);
        *out = gi_handle(gpu, fresh);
        result = SUCCESS;
        break;
    }
    standin_unlock(lock);
    return result;
}

EXPORT int nvmlDeviceCreateGpuInstance(struct device *device, unsigned id,
                                       struct gpu_instance **out) {
    ENTER_GPU(device);
    return create(device, id, NULL, out);
}

EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, unsigned id,
                                                    const struct placement *wanted,
                                                    struct gpu_instance **out) {
    ENTER_GPU(device);
    return wanted == NULL ? INVALID_ARGUMENT : create(device, id, wanted, out);
}

EXPORT int nvmlDeviceGetGpuInstances(struct device *device, unsigned id, struct gpu_instance **out,
                                     unsigned *count) {
    struct standin_gi found[INSTANCES];
    struct profile profile;
    ENTER_GPU(device);
    int code = partitioned(device, id, &profile);
    if (code) return code;
    int all = standin_gi_list(device->gpu, found, INSTANCES);
    *count = 0;
    for (int i = 0; i < all; i++)
        if (found[i].profile == id) out[(*count)++] = gi_handle(device->gpu, found[i].id);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceById(struct device *device, unsigned id,
                                        struct gpu_instance **out) {
    struct standin_gi found;
    ENTER_GPU(device);
    if (!nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    if (!standin_gi_read(device->gpu, id, &found)) return NOT_FOUND;
    *out = gi_handle(device->gpu, id);
    return SUCCESS;
}

/* A handle whose instance is gone names nothing. */
#define ENTER_GI(instance, found)                                                                   \
    do {                                                                                            \
        if ((instance) == NULL) return INVALID_ARGUMENT;                                            \
        ENTER_AT((instance)->gpu);                                                                  \
        if (!standin_gi_read((instance)->gpu, (instance)->id, &(found))) return NOT_FOUND;          \
    } while (0)

struct gi_facts {
    struct device *device;
    unsigned id, profile;
    struct placement placement;
};

EXPORT int nvmlGpuInstanceGetInfo(struct gpu_instance *instance, struct gi_facts *out) {
    struct standin_gi found;
    ENTER_GI(instance, found);
    out->device = nvml_device(instance->gpu);
    out->id = found.id;
    out->profile = found.profile;
    out->placement.start = found.start;
    out->placement.size = found.size;
    return SUCCESS;
}

static void remove_files(int gpu, const char *directory, const char *const *names, int count) {
    char name[128];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s/%s", directory, names[i]);
        standin_remove(gpu, name);
    }
    standin_remove(gpu, directory);
}

EXPORT int nvmlGpuInstanceDestroy(struct gpu_instance *instance) {
    static const char *const names[] = {"profile", "start", "size", "uuid", "ci"};
    struct standin_gi found;
    struct standin_ci part;
    char directory[64];
    ENTER_GI(instance, found);
    int gpu = instance->gpu, lock = standin_lock(gpu, "mig");
    int busy = standin_ci_list(gpu, found.id, &part, 1) > 0 || nvml_in_use(gpu, found.id, STANDIN_NONE);
    snprintf(directory, sizeof directory, "gi/%u", found.id);
    if (!busy) {
        remove_files(gpu, directory, names, 5);
        grant(gpu, found.id, STANDIN_NONE, 0);
    }
    standin_unlock(lock);
    return busy ? IN_USE : SUCCESS;
}

/* --- compute instances ------------------------------------------------------------------- */

struct ci_profile { /* nvmlComputeInstanceProfileInfo_v2_t; version 1 begins at `id` */
    unsigned version, id, slices, instances, processors, copy_engines, decoders, encoders, jpegs, ofas;
    char name[96];
};

static const unsigned compute_slices[COMPUTE_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 1, 7};

static unsigned slices_of(int gpu, uint32_t profile) {
    struct profile found;
    return profile_by_id(gpu, profile, &found) ? found.slices : 0;
}

/* Ids of compute profiles are their index; the two revisions at the end are on no stand-in. */
static int compute_profile(const struct standin_gi *gi, int gpu, unsigned id) {
    if (id >= COMPUTE_PROFILES) return INVALID_ARGUMENT;
    return id < 7 && compute_slices[id] <= slices_of(gpu, gi->profile) ? SUCCESS : NOT_SUPPORTED;
}

static int describe_compute(const struct standin_gi *gi, int gpu, unsigned id, unsigned engine,
                            struct ci_profile *out) {
    unsigned version = out->version, all = slices_of(gpu, gi->profile);
    int code = engine ? NOT_SUPPORTED : compute_profile(gi, gpu, id);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->version = version;
    out->id = id;
    out->slices = compute_slices[id];
    out->instances = all / out->slices;
    out->processors = 16 * out->slices;
    snprintf(out->name, sizeof out->name, "MIG %uc.%ug", out->slices, all);
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct gpu_instance *instance, unsigned id,
                                                         unsigned engine, struct ci_profile *out) {
    struct standin_gi found;
    ENTER_GI(instance, found);
    if (out->version != 0x02000088) return VERSION_MISMATCH;
    return describe_compute(&found, instance->gpu, id, engine, out);
}

EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct gpu_instance *instance, unsigned id,
                                                        unsigned engine, unsigned *out) {
    struct standin_gi found;
    struct ci_profile profile;
    ENTER_GI(instance, found);
    int code = describe_compute(&found, instance->gpu, id, engine, &profile);
    if (code == SUCCESS) memcpy(out, &profile.id, 9 * sizeof *out);
    return code;
}

static struct compute_instance *ci_handle(int gpu, uint32_t gi, uint32_t id) {
    struct compute_instance *handle = &ci_handles[gpu][gi % INSTANCES][id % PARTS];
    handle->gpu = gpu;
    handle->gi = gi;
    handle->id = id;
    return handle;
}

static unsigned slices_used(int gpu, uint32_t gi, uint32_t *free) {
    struct standin_ci parts[PARTS];
    int count = standin_ci_list(gpu, gi, parts, PARTS);
    unsigned used = 0;
    *free = 0;
    for (int i = 0; i < count; i++) {
        used += compute_slices[parts[i].profile % COMPUTE_PROFILES];
        if (parts[i].id == *free) ++*free;
    }
    return used;
}

EXPORT int nvmlGpuInstanceGetComputeInstanceRemainingCapacity(struct gpu_instance *instance,
                                                              unsigned id, unsigned *count) {
    struct standin_gi found;
    uint32_t ignored;
    ENTER_GI(instance, found);
    int code = compute_profile(&found, instance->gpu, id);
    if (code) return code;
    unsigned used = slices_used(instance->gpu, found.id, &ignored);
    *count = (slices_of(instance->gpu, found.profile) - used) / compute_slices[id];
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceCreateComputeInstance(struct gpu_instance *instance, unsigned id,
                                                struct compute_instance **out) {
    struct standin_gi found;
    char path[STANDIN_PATH], name[96], uuid[STANDIN_TEXT];
    uint32_t fresh;
    ENTER_GI(instance, found);
    int gpu = instance->gpu, code = compute_profile(&found, gpu, id);
    if (code) return code;
    int lock = standin_lock(gpu, "mig");
    unsigned used = slices_used(gpu, found.id, &fresh);
    if (used + compute_slices[id] > slices_of(gpu, found.profile)) {
        standin_unlock(lock);
        return INSUFFICIENT_RESOURCES;
    }
    snprintf(name, sizeof name, "gi/%u/ci", found.id);
    standin_path(path, sizeof path, gpu, name);
    mkdir(path, 0755);
    snprintf(name, sizeof name, "gi/%u/ci/%u", found.id, fresh);
    standin_path(path, sizeof path, gpu, name);
    mkdir(path, 0755);
    snprintf(name, sizeof name, "gi/%u/ci/%u/profile", found.id, fresh);
    standin_write_number(gpu, name, id);
    nvml_uuid("MIG-", uuid, sizeof uuid);
    snprintf(name, sizeof name, "gi/%u/ci/%u/uuid", found.id, fresh);
    standin_write(gpu, name, uuid);
    grant(gpu, found.id, fresh, 1);
    standin_unlock(lock);
    *out = ci_handle(gpu, found.id, fresh);
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstances(struct gpu_instance *instance, unsigned id,
                                              struct compute_instance **out, unsigned *count) {
    struct standin_gi found;
    struct standin_ci parts[PARTS];
    ENTER_GI(instance, found);
    int code = compute_profile(&found, instance->gpu, id);
    if (code) return code;
    int all = standin_ci_list(instance->gpu, found.id, parts, PARTS);
    *count = 0;
    for (int i = 0; i < all; i++)
        if (parts[i].profile == id) out[(*count)++] = ci_handle(instance->gpu, found.id, parts[i].id);
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstanceById(struct gpu_instance *instance, unsigned id,
                                                 struct compute_instance **out) {
    struct standin_gi found;
    struct standin_ci part;
    ENTER_GI(instance, found);
    if (!standin_ci_read(instance->gpu, found.id, id, &part)) return NOT_FOUND;
    *out = ci_handle(instance->gpu, found.id, id);
    return SUCCESS;
}

struct ci_facts {
    struct device *device;
    struct gpu_instance *instance;
    unsigned id, profile;
    struct placement placement;
};

EXPORT int nvmlComputeInstanceGetInfo_v2(struct compute_instance *part, struct ci_facts *out) {
    struct standin_ci found;
    if (part == NULL) return INVALID_ARGUMENT;
    ENTER_AT(part->gpu);
    if (!standin_ci_read(part->gpu, part->gi, part->id, &found)) return NOT_FOUND;
    out->device = nvml_mig_device(part->gpu, part->gi, part->id);
    out->instance = gi_handle(part->gpu, part->gi);
    out->id = found.id;
    out->profile = found.profile;
    out->placement.start = found.id;
    out->placement.size = compute_slices[found.profile % COMPUTE_PROFILES];
    return SUCCESS;
}

EXPORT int nvmlComputeInstanceDestroy(struct compute_instance *part) {
    static const char *const names[] = {"uuid", "profile"};
    struct standin_ci found;
    char directory[96];
    if (part == NULL) return INVALID_ARGUMENT;
    ENTER_AT(part->gpu);
    if (!standin_ci_read(part->gpu, part->gi, part->id, &found)) return NOT_FOUND;
    if (nvml_in_use(part->gpu, part->gi, part->id)) return IN_USE;
    int lock = standin_lock(part->gpu, "mig");
    snprintf(directory, sizeof directory, "gi/%u/ci/%u", part->gi, part->id);
    remove_files(part->gpu, directory, names, 2);
    grant(part->gpu, part->gi, part->id, 0);
    standin_unlock(lock);
    return SUCCESS;
}

/* --- MIG devices ------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
    ENTER_GPU(device);
    int capable = standin_number(device->gpu, "mig_capable", 0) != 0;
    *count = capable ? slices_of_all(device->gpu) : 0;
    return SUCCESS;
}

/* The index is the instance's first memory slice (plus the compute instance), so there are holes. */
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                               struct device **out) {
    struct standin_gi found[INSTANCES];
    ENTER_GPU(device);
    if (!nvml_mig_on(device->gpu)) return NOT_SUPPORTED;
    if (index >= MIG_DEVICES_MAX) return INVALID_ARGUMENT;
    int count = standin_gi_list(device->gpu, found, INSTANCES);
    for (int i = 0; i < count; i++) {
        struct standin_ci parts[PARTS];
        int all = standin_ci_list(device->gpu, found[i].id, parts, PARTS);
        for (int j = 0; j < all; j++)
            if (found[i].start + parts[j].id == index) {
                *out = nvml_mig_device(device->gpu, found[i].id, parts[j].id);
                return *out == NULL ? NOT_FOUND : SUCCESS;
            }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *out) {
    ENTER_ANY(device);
    *out = device->gi != STANDIN_NONE;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *device, struct device **out) {
    ENTER_ANY(device);
    if (device->gi == STANDIN_NONE) return INVALID_ARGUMENT;
    *out = nvml_device(device->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *out) {
    ENTER_ANY(device);
    if (device->gi == STANDIN_NONE) return NOT_SUPPORTED;
    *out = device->gi;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *out) {
    ENTER_ANY(device);
    if (device->gi == STANDIN_NONE) return NOT_SUPPORTED;
    *out = device->ci;
    return SUCCESS;
}

struct attributes {
    unsigned processors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

EXPORT int nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *out) {
    struct standin_gi found;
    struct standin_ci part;
    struct profile profile;
    ENTER_ANY(device);
    if (device->gi == STANDIN_NONE) return NOT_SUPPORTED;
    if (!standin_gi_read(device->gpu, device->gi, &found)) return NOT_FOUND;
    if (!standin_ci_read(device->gpu, device->gi, device->ci, &part)) return NOT_FOUND;
    if (!profile_by_id(device->gpu, found.profile, &profile)) return UNKNOWN_ERROR;
    memset(out, 0, sizeof *out);
    out->gpu_slices = profile.slices;
    out->compute_slices = compute_slices[part.profile % COMPUTE_PROFILES];
    out->processors = 16 * out->compute_slices;
    out->copy_engines = out->decoders = out->jpegs = profile.slices;
    out->memory_mib = profile.memory_mib;
    return SUCCESS;
}
