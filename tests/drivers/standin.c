/* Files below $FLEET_STANDIN: see standin.h for the rules and README.md for the layout. */
#define _GNU_SOURCE
#include "standin.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- files ------------------------------------------------------------------------------- */

const char *standin_root(void) {
    const char *root = getenv("FLEET_STANDIN");
    return root != NULL && root[0] != 0 ? root : NULL;
}

void standin_path(char *out, size_t size, int gpu, const char *name) {
    const char *root = standin_root();
    if (root == NULL) root = "/nonexistent";
    if (gpu == STANDIN_HOST) snprintf(out, size, "%s/%s", root, name);
    else snprintf(out, size, "%s/gpus/%d/%s", root, gpu, name);
}

static int whole(const char *path, char *out, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    out[0] = 0;
    if (file < 0) return 0;
    ssize_t length = read(file, out, size - 1);
    close(file);
    out[length < 0 ? 0 : length] = 0;
    return length >= 0;
}

static int first_line(const char *path, char *out, size_t size) {
    int found = whole(path, out, size);
    out[strcspn(out, "\r\n")] = 0;
    return found;
}

int standin_whole(int gpu, const char *name, char *out, size_t size) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, name);
    return whole(path, out, size);
}

int standin_text(int gpu, const char *name, char *out, size_t size, const char *fallback) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, name);
    if (first_line(path, out, size)) return 1;
    snprintf(out, size, "%s", fallback != NULL ? fallback : "");
    return 0;
}

uint64_t standin_number(int gpu, const char *name, uint64_t fallback) {
    char text[STANDIN_TEXT];
    if (!standin_text(gpu, name, text, sizeof text, NULL) || text[0] == 0) return fallback;
    return strtoull(text, NULL, 0);
}

int standin_reading(int gpu, const char *name, uint64_t fallback, uint64_t *value) {
    char text[STANDIN_TEXT];
    *value = fallback;
    if (!standin_text(gpu, name, text, sizeof text, NULL) || text[0] == 0) return 0;
    if (strncmp(text, "error ", 6) == 0) return atoi(text + 6);
    *value = strtoull(text, NULL, 0);
    return 0;
}

static int write_file(const char *path, const char *text) {
    char fresh[STANDIN_PATH + 64];
    snprintf(fresh, sizeof fresh, "%s.%d.new", path, (int)getpid());
    int file = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return -1;
    size_t length = strlen(text);
    int failed = write(file, text, length) != (ssize_t)length;
    close(file);
    if (failed || rename(fresh, path) != 0) {
        unlink(fresh);
        return -1;
    }
    return 0;
}

int standin_write(int gpu, const char *name, const char *text) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, name);
    return write_file(path, text);
}

int standin_write_number(int gpu, const char *name, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)value);
    return standin_write(gpu, name, text);
}

int standin_exists(int gpu, const char *name) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, name);
    return access(path, F_OK) == 0;
}

void standin_remove(int gpu, const char *name) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, name);
    if (unlink(path) != 0) rmdir(path);
}

static int ascending(const void *left, const void *right) {
    return *(const int *)left - *(const int *)right;
}

int standin_numbers(int gpu, const char *directory, int *out, int max) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, directory);
    DIR *listing = opendir(path);
    if (listing == NULL) return 0;
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(listing)) != NULL && count < max) {
        char *end;
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        long number = strtol(entry->d_name, &end, 10);
        if (*end == 0) out[count++] = (int)number;
    }
    closedir(listing);
    qsort(out, (size_t)count, sizeof *out, ascending);
    return count;
}

int standin_lock(int gpu, const char *name) {
    char locked[STANDIN_TEXT], path[STANDIN_PATH];
    snprintf(locked, sizeof locked, "%s.lock", name);
    standin_path(path, sizeof path, gpu, locked);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0) return -1;
    while (flock(lock, LOCK_EX) != 0 && errno == EINTR) continue;
    return lock;
}

void standin_unlock(int lock) {
    if (lock >= 0) close(lock);
}

/* --- GPUs -------------------------------------------------------------------------------- */

int standin_gpus(int *out, int max) {
    int found[STANDIN_GPUS];
    int all = standin_numbers(STANDIN_HOST, "gpus", found, STANDIN_GPUS), count = 0;
    for (int i = 0; i < all && count < max; i++)
        if (standin_number(found[i], "removed", 0) == 0) out[count++] = found[i];
    return count;
}

int standin_find(const char *uuid, int *gpu, uint32_t *gi, uint32_t *ci) {
    int gpus[STANDIN_GPUS];
    int count = standin_gpus(gpus, STANDIN_GPUS);
    *gi = *ci = STANDIN_NONE;
    for (int i = 0; i < count; i++) {
        char text[STANDIN_TEXT];
        *gpu = gpus[i];
        standin_text(gpus[i], "uuid", text, sizeof text, NULL);
        if (strcmp(text, uuid) == 0) return 1;
        struct standin_gi instances[64];
        int found = standin_gi_list(gpus[i], instances, 64);
        for (int j = 0; j < found; j++) {
            struct standin_ci parts[16];
            int held = standin_ci_list(gpus[i], instances[j].id, parts, 16);
            for (int k = 0; k < held; k++)
                if (strcmp(parts[k].uuid, uuid) == 0) {
                    *gi = instances[j].id;
                    *ci = parts[k].id;
                    return 1;
                }
        }
    }
    return 0;
}

/* --- faults ------------------------------------------------------------------------------ */

static void doze(double seconds) {
    struct timespec rest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}

static long count_call(const char *name) {
    char path[STANDIN_PATH], text[STANDIN_TEXT];
    standin_path(path, sizeof path, STANDIN_HOST, "faults/.calls");
    mkdir(path, 0755);
    int lock = standin_lock(STANDIN_HOST, "faults/.calls/all");
    snprintf(path, sizeof path, "faults/.calls/%s", name);
    long calls = (long)standin_number(STANDIN_HOST, path, 0) + 1;
    snprintf(text, sizeof text, "%ld\n", calls);
    standin_write(STANDIN_HOST, path, text);
    standin_unlock(lock);
    return calls;
}

static int strike(const char *name, const char *file) {
    char text[STANDIN_TEXT], now[STANDIN_TEXT], *word, *rest;
    long after = 0, times = -1;
    int code = 0, hang = 0;
    double pause = 0;
    if (!standin_text(STANDIN_HOST, file, text, sizeof text, NULL)) return 0;
    snprintf(now, sizeof now, "%s", text);
    for (word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (strcmp(word, "hang") == 0) {
            hang = 1;
            continue;
        }
        char *value = strtok_r(NULL, " ", &rest);
        if (value == NULL) break;
        if (strcmp(word, "after") == 0) after = atol(value);
        else if (strcmp(word, "times") == 0) times = atol(value);
        else if (strcmp(word, "sleep") == 0) pause = atof(value);
        else if (strcmp(word, "return") == 0) code = atoi(value);
    }
    if (after > 0 || times >= 0) {
        long calls = count_call(name);
        if (calls <= after || (times >= 0 && calls > after + times)) return 0;
    }
    if (pause > 0) doze(pause);
    while (hang && standin_text(STANDIN_HOST, file, text, sizeof text, NULL) &&
           strcmp(text, now) == 0)
        doze(0.02);
    return code;
}

int standin_fault(const char *function, const char *uuid) {
    if (!standin_exists(STANDIN_HOST, "faults")) return 0;
    const char *group = strncmp(function, "nvml", 4) == 0 ? "nvml*" : "cu*";
    char plain[STANDIN_TEXT];
    snprintf(plain, sizeof plain, "%s", function);
    char *suffix = strstr(plain, "_v");
    if (suffix != NULL && isdigit((unsigned char)suffix[2]) && suffix[3] == 0) *suffix = 0;
    const char *names[] = {function, plain, group, "*"};
    for (int i = 0; i < 4; i++)
        for (int bare = uuid == NULL || uuid[0] == 0; bare < 2; bare++) {
            char name[STANDIN_TEXT], file[STANDIN_TEXT + 16];
            if (bare) snprintf(name, sizeof name, "%s", names[i]);
            else snprintf(name, sizeof name, "%s@%s", names[i], uuid);
            snprintf(file, sizeof file, "faults/%s", name);
            if (standin_exists(STANDIN_HOST, file)) return strike(name, file);
        }
    return 0;
}

/* --- processes --------------------------------------------------------------------------- */

uint64_t standin_start_time(uint32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (!whole(path, text, sizeof text)) return 0;
    char *at = strrchr(text, ')'); /* the name may hold anything */
    if (at == NULL || at[1] == 0) return 0;
    at += 2;
    if (*at == 'Z' || *at == 'X') return 0;
    for (int field = 3; field < 22 && at != NULL; field++)
        if ((at = strchr(at, ' ')) != NULL) at++;
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

int standin_alive(uint32_t pid, uint64_t start_time) {
    return start_time != 0 && standin_start_time(pid) == start_time;
}

/* --- memory ------------------------------------------------------------------------------ */

unsigned char *standin_memory(int gpu, uint64_t *total) {
    char path[STANDIN_PATH];
    struct stat facts;
    standin_path(path, sizeof path, gpu, "memory");
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *memory = MAP_FAILED;
    if (fstat(file, &facts) == 0 && facts.st_size > 0)
        memory = mmap(NULL, (size_t)facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return NULL;
    *total = (uint64_t)facts.st_size;
    return memory;
}

void standin_unmap(unsigned char *memory, uint64_t total) {
    if (memory != NULL) munmap(memory, (size_t)total);
}

int standin_range(int gpu, uint32_t gi, uint64_t *begin, uint64_t *end, uint64_t *reserved) {
    uint64_t total = standin_number(gpu, "total", 0), slices = standin_number(gpu, "slices", 8);
    struct standin_gi instance;
    *begin = 0;
    *end = total;
    *reserved = standin_number(gpu, "reserved", 0);
    if (gi == STANDIN_NONE) return 0;
    if (!standin_gi_read(gpu, gi, &instance) || slices == 0) return -1;
    *begin = instance.start * total / slices;
    *end = (uint64_t)(instance.start + instance.size) * total / slices;
    *reserved = *reserved * instance.size / slices;
    return 0;
}

static void scrub(int gpu, uint64_t offset, uint64_t length) {
    uint64_t total = 0;
    if (standin_number(gpu, "scrub_on_free", 1) == 0) return;
    unsigned char *memory = standin_memory(gpu, &total);
    if (memory == NULL) return;
    if (offset < total && length <= total - offset) memset(memory + offset, 0, (size_t)length);
    standin_unmap(memory, total);
}

static int load(int gpu, struct standin_allocation *out, int max) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, "allocations");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, out, sizeof *out * (size_t)max);
    close(file);
    return length < 0 ? 0 : (int)((size_t)length / sizeof *out);
}

static int store(int gpu, const struct standin_allocation *records, int count) {
    char path[STANDIN_PATH];
    size_t length = sizeof *records * (size_t)count;
    standin_path(path, sizeof path, gpu, "allocations");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return -1;
    ssize_t written = write(file, records, length);
    close(file);
    return written == (ssize_t)length ? 0 : -1;
}

/* Under the lock: what is left when the dead have given back theirs. */
static int living(int gpu, struct standin_allocation *records) {
    int count = load(gpu, records, STANDIN_RECORDS), kept = 0;
    for (int i = 0; i < count; i++) {
        if (standin_alive(records[i].pid, records[i].start_time)) records[kept++] = records[i];
        else scrub(gpu, records[i].offset, records[i].length);
    }
    if (kept != count) store(gpu, records, kept);
    return kept;
}

int standin_allocations(int gpu, struct standin_allocation *out, int max) {
    struct standin_allocation *records = malloc(sizeof *records * STANDIN_RECORDS);
    if (records == NULL) return 0;
    int lock = standin_lock(gpu, "allocations");
    int count = living(gpu, records);
    standin_unlock(lock);
    if (count > max) count = max;
    memcpy(out, records, sizeof *records * (size_t)count);
    free(records);
    return count;
}

static int by_offset(const void *left, const void *right) {
    const struct standin_allocation *a = left, *b = right;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

int standin_allocate(int gpu, uint32_t gi, uint64_t begin, uint64_t end, uint64_t length,
                     uint64_t alignment, uint64_t *offset) {
    struct standin_allocation *records = malloc(sizeof *records * (STANDIN_RECORDS + 1));
    if (records == NULL || length == 0) {
        free(records);
        return -1;
    }
    int lock = standin_lock(gpu, "allocations");
    int count = living(gpu, records), result = -1;
    qsort(records, (size_t)count, sizeof *records, by_offset);
    if (alignment == 0) alignment = 1;
    uint64_t at = (begin + alignment - 1) / alignment * alignment;
    for (int i = 0; i < count; i++) {
        uint64_t stop = records[i].offset + records[i].length;
        if (stop <= at) continue;
        if (records[i].offset >= at && records[i].offset - at >= length) break;
        at = (stop + alignment - 1) / alignment * alignment;
    }
    if (count < STANDIN_RECORDS && at <= end && length <= end - at) {
        uint32_t pid = (uint32_t)getpid();
        struct standin_allocation fresh = {pid, gi, standin_start_time(pid), at, length};
        records[count] = fresh;
        *offset = at;
        result = store(gpu, records, count + 1);
    }
    standin_unlock(lock);
    free(records);
    return result;
}

int standin_release(int gpu, uint64_t offset) {
    struct standin_allocation *records = malloc(sizeof *records * STANDIN_RECORDS);
    if (records == NULL) return -1;
    int lock = standin_lock(gpu, "allocations");
    int count = living(gpu, records), result = -1;
    for (int i = 0; i < count; i++) {
        if (records[i].offset != offset || records[i].pid != (uint32_t)getpid()) continue;
        scrub(gpu, records[i].offset, records[i].length);
        records[i] = records[count - 1];
        result = store(gpu, records, count - 1);
        break;
    }
    standin_unlock(lock);
    free(records);
    return result;
}

uint64_t standin_used(int gpu, uint32_t gi) {
    struct standin_allocation *records = malloc(sizeof *records * STANDIN_RECORDS);
    if (records == NULL) return 0;
    int count = standin_allocations(gpu, records, STANDIN_RECORDS);
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        if (gi == STANDIN_NONE || records[i].gi == gi) used += records[i].length;
    free(records);
    return used;
}

/* --- contexts ---------------------------------------------------------------------------- */

int standin_enter(int gpu, uint32_t gi, uint32_t ci) {
    char name[STANDIN_TEXT], text[STANDIN_TEXT], path[STANDIN_PATH];
    uint32_t pid = (uint32_t)getpid();
    standin_path(path, sizeof path, gpu, "contexts");
    mkdir(path, 0755);
    snprintf(text, sizeof text, "%llu %u %u\n", (unsigned long long)standin_start_time(pid), gi, ci);
    for (int number = 0;; number++) {
        snprintf(name, sizeof name, "contexts/%u-%d", pid, number);
        if (standin_exists(gpu, name)) continue;
        return standin_write(gpu, name, text) == 0 ? number : -1;
    }
}

void standin_leave(int gpu, int number) {
    char name[STANDIN_TEXT];
    snprintf(name, sizeof name, "contexts/%u-%d", (unsigned)getpid(), number);
    standin_remove(gpu, name);
}

int standin_contexts(int gpu, struct standin_context *out, int max) {
    char path[STANDIN_PATH];
    standin_path(path, sizeof path, gpu, "contexts");
    DIR *listing = opendir(path);
    if (listing == NULL) return 0;
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(listing)) != NULL && count < max) {
        char text[STANDIN_TEXT], file[STANDIN_PATH + STANDIN_TEXT + 2];
        unsigned pid, gi = STANDIN_NONE, ci = STANDIN_NONE;
        int number, length = 0;
        unsigned long long start = 0;
        if (sscanf(entry->d_name, "%u-%d%n", &pid, &number, &length) != 2) continue;
        if (entry->d_name[length] != 0) continue; /* one that is being written */
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (!first_line(file, text, sizeof text)) continue;
        sscanf(text, "%llu %u %u", &start, &gi, &ci);
        if (!standin_alive(pid, start)) {
            unlink(file);
            continue;
        }
        struct standin_context found = {pid, gi, ci, start};
        out[count++] = found;
    }
    closedir(listing);
    return count;
}

/* --- MIG --------------------------------------------------------------------------------- */

int standin_gi_read(int gpu, uint32_t id, struct standin_gi *out) {
    char name[64];
    snprintf(name, sizeof name, "gi/%u/profile", id);
    if (!standin_exists(gpu, name)) return 0;
    out->id = id;
    out->profile = (uint32_t)standin_number(gpu, name, 0);
    snprintf(name, sizeof name, "gi/%u/start", id);
    out->start = (uint32_t)standin_number(gpu, name, 0);
    snprintf(name, sizeof name, "gi/%u/size", id);
    out->size = (uint32_t)standin_number(gpu, name, 0);
    return 1;
}

int standin_gi_list(int gpu, struct standin_gi *out, int max) {
    int ids[64], count = 0, found = standin_numbers(gpu, "gi", ids, 64);
    for (int i = 0; i < found && count < max; i++)
        count += standin_gi_read(gpu, (uint32_t)ids[i], &out[count]);
    return count;
}

int standin_ci_read(int gpu, uint32_t gi, uint32_t id, struct standin_ci *out) {
    char name[96];
    snprintf(name, sizeof name, "gi/%u/ci/%u/uuid", gi, id);
    if (!standin_text(gpu, name, out->uuid, sizeof out->uuid, NULL)) return 0;
    out->id = id;
    snprintf(name, sizeof name, "gi/%u/ci/%u/profile", gi, id);
    out->profile = (uint32_t)standin_number(gpu, name, 0);
    return 1;
}

int standin_ci_list(int gpu, uint32_t gi, struct standin_ci *out, int max) {
    char name[64];
    int ids[64], count = 0;
    snprintf(name, sizeof name, "gi/%u/ci", gi);
    int found = standin_numbers(gpu, name, ids, 64);
    for (int i = 0; i < found && count < max; i++)
        count += standin_ci_read(gpu, gi, (uint32_t)ids[i], &out[count]);
    return count;
}
