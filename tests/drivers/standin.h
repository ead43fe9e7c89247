/* State of the driver stand-ins: files below $FLEET_STANDIN, read at each call.
 *
 * Shared by libnvidia-ml.so.1 and libcuda.so.1 so that both tell the same story. A GPU is named by
 * the number of its directory, gpus/<n>; STANDIN_HOST stands for $FLEET_STANDIN itself. Nothing is
 * cached: a test that writes a file changes what the next call says, in every process.
 */
#ifndef FLEET_STANDIN_H
#define FLEET_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#define STANDIN_HOST (-1)
#define STANDIN_NONE 0xFFFFFFFFu /* no GPU instance, no compute instance */
#define STANDIN_GPUS 64
#define STANDIN_PATH 1024
#define STANDIN_TEXT 256
#define STANDIN_RECORDS 4096

struct standin_allocation { /* one record of gpus/<n>/allocations, 32 bytes */
    uint32_t pid, gi;
    uint64_t start_time, offset, length;
};

struct standin_context { /* one file gpus/<n>/contexts/<pid>-<k> */
    uint32_t pid, gi, ci;
    uint64_t start_time;
};

struct standin_gi { /* gpus/<n>/gi/<id> */
    uint32_t id, profile, start, size;
};

struct standin_ci { /* gpus/<n>/gi/<gi>/ci/<id> */
    uint32_t id, profile;
    char uuid[STANDIN_TEXT];
};

/* --- files ------------------------------------------------------------------------------- */

/* $FLEET_STANDIN, or NULL: then there is no driver. */
const char *standin_root(void);
/* Absolute path of gpus/<gpu>/<name>, or of <name> with STANDIN_HOST. */
void standin_path(char *out, size_t size, int gpu, const char *name);
/* First line of a file without its end; `fallback` (may be NULL: "") where there is no file.
 * 1 when the file was there. */
int standin_text(int gpu, const char *name, char *out, size_t size, const char *fallback);
/* The whole of a file, cut to `size`; "" and 0 where there is none. */
int standin_whole(int gpu, const char *name, char *out, size_t size);
/* A number, decimal or 0x...; `fallback` where there is no file. */
uint64_t standin_number(int gpu, const char *name, uint64_t fallback);
/* As standin_number, where "error <code>" in the file is returned as that code; 0 otherwise. */
int standin_reading(int gpu, const char *name, uint64_t fallback, uint64_t *value);
/* Replace a file whole, by a rename. 0, or -1. */
int standin_write(int gpu, const char *name, const char *text);
int standin_write_number(int gpu, const char *name, uint64_t value);
int standin_exists(int gpu, const char *name);
void standin_remove(int gpu, const char *name);
/* Numbers that name entries of a directory, ascending. */
int standin_numbers(int gpu, const char *directory, int *out, int max);

/* Exclusive flock on <name>.lock; give the result to standin_unlock. Not recursive. */
int standin_lock(int gpu, const char *name);
void standin_unlock(int lock);

/* --- GPUs -------------------------------------------------------------------------------- */

/* Directory numbers in NVML order: ascending, without those whose file `removed` says 1. */
int standin_gpus(int *out, int max);
/* Whose UUID this is: a GPU (gi and ci STANDIN_NONE) or a MIG device. 1 when found. */
int standin_find(const char *uuid, int *gpu, uint32_t *gi, uint32_t *ci);

/* --- faults ------------------------------------------------------------------------------ */

/* What faults/ says about a call: 0, or the code to return. Sleeps and hangs in here.
 *
 * Looked for in this order: faults/<function>@<uuid>, faults/<function>, then the same for the name
 * without its _v2 or _v3, for "nvml*" or "cu*" (its prefix), and for "*"; the first file decides.
 * uuid may be NULL or "". Grammar of the file, parts in this order, all but one optional:
 *   [after <k>] [times <k>] [sleep <seconds>] [hang] [return <code>]
 * The first `after` calls work, then `times` calls are struck (all, when absent). Calls are counted
 * over all processes in faults/.calls. A hang ends when its file is removed or changed. */
int standin_fault(const char *function, const char *uuid);

/* --- processes --------------------------------------------------------------------------- */

/* Start time of a process in clock ticks since boot, 0 when it is gone or a zombie. */
uint64_t standin_start_time(uint32_t pid);
int standin_alive(uint32_t pid, uint64_t start_time);

/* --- memory ------------------------------------------------------------------------------ */

/* The whole backing file, mapped shared; NULL without one. Its length goes to `total`. */
unsigned char *standin_memory(int gpu, uint64_t *total);
void standin_unmap(unsigned char *memory, uint64_t total);
/* Bytes [begin, end) of the GPU or of a GPU instance; the last `reserved` of them are the driver's.
 * 0, or -1 when there is no such instance. */
int standin_range(int gpu, uint32_t gi, uint64_t *begin, uint64_t *end, uint64_t *reserved);
/* Allocations of living processes. Those of the dead are dropped and, unless scrub_on_free is 0,
 * their bytes zeroed. */
int standin_allocations(int gpu, struct standin_allocation *out, int max);
/* First fit inside [begin, end), aligned; recorded for this process. 0, or -1 without room. */
int standin_allocate(int gpu, uint32_t gi, uint64_t begin, uint64_t end, uint64_t length,
                     uint64_t alignment, uint64_t *offset);
/* Drop this process's record at `offset` (and scrub). 0, or -1 when there is none. */
int standin_release(int gpu, uint64_t offset);
/* Bytes allocated in an instance; with STANDIN_NONE on the whole GPU. */
uint64_t standin_used(int gpu, uint32_t gi);

/* --- contexts ---------------------------------------------------------------------------- */

/* Say that this process has a context; the number names it to standin_leave. */
int standin_enter(int gpu, uint32_t gi, uint32_t ci);
void standin_leave(int gpu, int number);
/* Contexts of living processes; files of the dead are removed. */
int standin_contexts(int gpu, struct standin_context *out, int max);

/* --- MIG --------------------------------------------------------------------------------- */

int standin_gi_list(int gpu, struct standin_gi *out, int max);
int standin_gi_read(int gpu, uint32_t id, struct standin_gi *out); /* 1 when there is one */
int standin_ci_list(int gpu, uint32_t gi, struct standin_ci *out, int max);
int standin_ci_read(int gpu, uint32_t gi, uint32_t id, struct standin_ci *out);

#endif
