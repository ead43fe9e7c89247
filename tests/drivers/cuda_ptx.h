/* Executes PTX text: the subset that our kernels use, every thread of a launch, no hardware.
 *
 * Registers are arrays over 128 threads of a block, so an instruction is one loop that the compiler
 * turns into vector code. Threads that part ways are run in order of their place in the program
 * until they meet again. There are no barriers: none of the kernels has one. An exchange within a warp
 * fails the launch unless all of its threads are there.
 */
#ifndef FLEET_CUDA_PTX_H
#define FLEET_CUDA_PTX_H

#include <stddef.h>
#include <stdint.h>

struct ptx_module;
struct ptx_kernel;

/* What a launch may touch. Device addresses are addresses of this process. */
struct ptx_memory {
    void *state;
    /* 1 when [low, high) lies in one allocation. */
    int (*allowed)(void *state, uint64_t low, uint64_t high);
    /* Called after every instruction that stored somewhere in [low, high). */
    void (*stored)(void *state, uint64_t low, uint64_t high);
};

struct ptx_launch {
    unsigned grid, block, shared_bytes;
    void **parameters;
    struct ptx_memory memory;
    uint64_t bytes, instructions; /* out: global memory moved, thread instructions executed */
};

/* NULL when the text is not understood; `problem` says where. */
struct ptx_module *ptx_parse(const char *text, char *problem, size_t size);
void ptx_free(struct ptx_module *module);
struct ptx_kernel *ptx_find(struct ptx_module *module, const char *name);
/* Threads of a block the kernel demands, 0 for any. */
unsigned ptx_block(const struct ptx_kernel *kernel);
/* 0, or -1 after an access outside of any allocation. */
int ptx_run(const struct ptx_kernel *kernel, struct ptx_launch *launch);

#endif
