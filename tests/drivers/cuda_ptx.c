/* A small PTX machine: see cuda_ptx.h. */
#define _GNU_SOURCE
#include "cuda_ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANES 128
#define NAME 64
#define OPERANDS 6

enum op {
    OP_ADD, OP_SUB, OP_MUL_LO, OP_MUL_WIDE, OP_MAD_LO, OP_AND, OP_OR, OP_XOR, OP_SHL, OP_SHR, OP_MOV,
    OP_UNPACK, OP_CVT, OP_SETP, OP_SELP, OP_LD, OP_ST, OP_ATOM_ADD, OP_ATOM_MIN,
    OP_SHFL, OP_BRA, OP_RET
};
enum compare { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE };
enum space { SPACE_PARAM, SPACE_GLOBAL, SPACE_SHARED };
enum kind { KIND_PRED, KIND_32, KIND_64 };

struct instruction {
    enum op op;
    int wide;            /* operands are 64 bits */
    int from_wide;       /* cvt: the source is 64 bits */
    enum compare compare;
    enum space space;
    int vector;          /* values moved by ld and st */
    int guard, negated;  /* predicate register, -1 for none */
    int at[OPERANDS];    /* register numbers in the file of their kind; ld, st: address, values */
    int64_t offset;      /* ld, st, atom */
    int target;          /* bra */
    int parameter;
    char label[NAME];
};

struct constant { enum kind kind; uint64_t value; int at; };
struct named { char name[NAME]; enum kind kind; int at; };

struct ptx_kernel {
    char name[NAME];
    unsigned block;
    struct { char name[NAME]; int wide; } parameters[16];
    int parameter_count;
    struct instruction *code;
    int length;
    struct named *names;
    int name_count;
    struct constant *constants;
    int constant_count;
    int count[3];        /* registers of each kind, constants and special ones included */
    int tid, ctaid, nctaid, ntid;
    struct { char name[NAME]; int place; } labels[64];
    int label_count;
    struct ptx_kernel *next;
};

struct ptx_module {
    struct ptx_kernel *kernels;
    char shared[NAME];   /* the dynamic shared array */
};

/* --- reading ----------------------------------------------------------------------------- */

struct reader {
    const char *at;
    int line;
    char word[NAME];
    char *problem;
    size_t size;
    int failed;
};

static void fail(struct reader *reader, const char *what) {
    if (!reader->failed)
        snprintf(reader->problem, reader->size, "line %d: %s at '%s'", reader->line, what,
                 reader->word);
    reader->failed = 1;
}

static int wordly(int c) { return isalnum(c) || c == '_' || c == '.' || c == '%' || c == '$'; }

/* Next word or single sign; "" at the end. */
static const char *next(struct reader *reader) {
    const char *at = reader->at;
    for (;;) {
        while (isspace((unsigned char)*at)) reader->line += *at++ == '\n';
        if (at[0] != '/' || at[1] != '/') break;
        while (*at && *at != '\n') at++;
    }
    size_t length = 0;
    if (wordly((unsigned char)*at))
        while (wordly((unsigned char)at[length])) length++;
    else if (*at) length = 1;
    size_t kept = length < NAME - 1 ? length : NAME - 1;
    memcpy(reader->word, at, kept);
    reader->word[kept] = 0;
    reader->at = at + length;
    return reader->word;
}

static int peek(struct reader *reader) {
    struct reader copy = *reader;
    return next(&copy)[0];
}

static int accept(struct reader *reader, const char *word) {
    struct reader copy = *reader;
    if (strcmp(next(&copy), word) != 0) return 0;
    *reader = copy;
    return 1;
}

static void expect(struct reader *reader, const char *word) {
    if (strcmp(next(reader), word) != 0) fail(reader, word);
}

static void *grown(void *array, int count, size_t size) {
    return (count & (count - 1)) == 0 ? realloc(array, size * (size_t)(count ? 2 * count : 1)) : array;
}

static int name_at(struct ptx_kernel *kernel, const char *name, enum kind *kind) {
    for (int i = 0; i < kernel->name_count; i++)
        if (strcmp(kernel->names[i].name, name) == 0) {
            *kind = kernel->names[i].kind;
            return kernel->names[i].at;
        }
    return -1;
}

static int declare(struct ptx_kernel *kernel, const char *name, enum kind kind) {
    kernel->names = grown(kernel->names, kernel->name_count, sizeof *kernel->names);
    struct named *fresh = &kernel->names[kernel->name_count++];
    snprintf(fresh->name, NAME, "%s", name);
    fresh->kind = kind;
    return fresh->at = kernel->count[kind]++;
}

static int constant(struct ptx_kernel *kernel, enum kind kind, uint64_t value) {
    for (int i = 0; i < kernel->constant_count; i++) {
        struct constant *known = &kernel->constants[i];
        if (known->kind == kind && known->value == value) return known->at;
    }
    kernel->constants =
        grown(kernel->constants, kernel->constant_count, sizeof *kernel->constants);
    struct constant fresh = {kind, value, kernel->count[kind]++};
    kernel->constants[kernel->constant_count++] = fresh;
    return fresh.at;
}

/* A register, a number, or the shared array's address (0), of the kind asked for. */
static int operand(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel,
                   enum kind kind) {
    enum kind found;
    const char *word = next(reader);
    if (isdigit((unsigned char)word[0])) return constant(kernel, kind, strtoull(word, NULL, 0));
    if (module->shared[0] && strcmp(word, module->shared) == 0) return constant(kernel, kind, 0);
    int at = name_at(kernel, word, &found);
    if (at < 0 || found != kind) fail(reader, "no register of the right kind");
    return at;
}

static void registers(struct reader *reader, struct ptx_kernel *kernel) {
    char type[NAME], stem[NAME], name[2 * NAME];
    snprintf(type, sizeof type, "%s", next(reader));
    snprintf(stem, sizeof stem, "%s", next(reader));
    enum kind kind = strcmp(type, ".pred") == 0 ? KIND_PRED : strstr(type, "64") ? KIND_64 : KIND_32;
    expect(reader, "<");
    int count = atoi(next(reader));
    expect(reader, ">");
    expect(reader, ";");
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s%d", stem, i);
        declare(kernel, name, kind);
    }
}

static void address(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel,
                    struct instruction *it) {
    expect(reader, "[");
    if (it->space == SPACE_PARAM) {
        const char *name = next(reader);
        it->parameter = -1;
        for (int i = 0; i < kernel->parameter_count; i++)
            if (strcmp(kernel->parameters[i].name, name) == 0) it->parameter = i;
        if (it->parameter < 0) fail(reader, "no such parameter");
    } else {
        it->at[0] = operand(reader, module, kernel, it->space == SPACE_GLOBAL ? KIND_64 : KIND_32);
        if (accept(reader, "+")) it->offset = strtoll(next(reader), NULL, 0);
    }
    expect(reader, "]");
}

static void values(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel,
                   struct instruction *it) {
    enum kind kind = it->wide ? KIND_64 : KIND_32;
    if (it->vector == 1) {
        it->at[1] = operand(reader, module, kernel, kind);
        return;
    }
    expect(reader, "{");
    for (int i = 0; i < it->vector; i++) {
        if (i) expect(reader, ",");
        it->at[1 + i] = operand(reader, module, kernel, kind);
    }
    expect(reader, "}");
}

static int has(const char *opcode, const char *part) {
    const char *at = strstr(opcode, part);
    return at != NULL && (at[strlen(part)] == 0 || at[strlen(part)] == '.');
}

static void memory_access(struct reader *reader, struct ptx_module *module,
                          struct ptx_kernel *kernel, struct instruction *it, const char *opcode) {
    it->space = has(opcode, ".param") ? SPACE_PARAM : has(opcode, ".shared") ? SPACE_SHARED : SPACE_GLOBAL;
    it->vector = has(opcode, ".v4") ? 4 : has(opcode, ".v2") ? 2 : 1;
    if (it->op == OP_LD) {
        values(reader, module, kernel, it);
        expect(reader, ",");
        address(reader, module, kernel, it);
        return;
    }
    if (it->op != OP_ST) { /* atom: the old value first */
        it->at[2] = operand(reader, module, kernel, KIND_64);
        expect(reader, ",");
        if (!it->wide || it->space != SPACE_GLOBAL) fail(reader, "atom is for 64-bit global words");
    }
    address(reader, module, kernel, it);
    expect(reader, ",");
    values(reader, module, kernel, it);
}

static const struct { const char *stem; enum op op; int operands; } PLAIN[] = {
    {"add", OP_ADD, 3}, {"sub", OP_SUB, 3}, {"mul.lo", OP_MUL_LO, 3}, {"mul.wide", OP_MUL_WIDE, 3},
    {"mad.lo", OP_MAD_LO, 4}, {"and", OP_AND, 3}, {"or", OP_OR, 3}, {"xor", OP_XOR, 3},
    {"shl", OP_SHL, 3}, {"shr", OP_SHR, 3}, {"mov", OP_MOV, 2}, {"cvta.to.global", OP_MOV, 2},
    {"cvt", OP_CVT, 2}, {"setp", OP_SETP, 3}, {"selp", OP_SELP, 4}, {"shfl.sync.bfly", OP_SHFL, 5},
};
static const char *const COMPARES[] = {".eq", ".ne", ".lt", ".le", ".gt", ".ge"};

static enum kind kind_of(const struct instruction *it, int operand) {
    enum kind plain = it->wide ? KIND_64 : KIND_32;
    if (it->op == OP_MUL_WIDE) return operand == 0 ? KIND_64 : KIND_32;
    if ((it->op == OP_SHL || it->op == OP_SHR) && operand == 2) return KIND_32;
    if (it->op == OP_CVT && operand == 1) return it->from_wide ? KIND_64 : KIND_32;
    if (it->op == OP_SETP && operand == 0) return KIND_PRED;
    if (it->op == OP_SELP && operand == 3) return KIND_PRED;
    return plain;
}

static void arithmetic(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel,
                       struct instruction *it, const char *opcode) {
    size_t rows = sizeof PLAIN / sizeof PLAIN[0], row = 0;
    while (row < rows && !(strncmp(opcode, PLAIN[row].stem, strlen(PLAIN[row].stem)) == 0 &&
                           opcode[strlen(PLAIN[row].stem)] == '.'))
        row++;
    if (row == rows) {
        fail(reader, "unknown instruction");
        return;
    }
    it->op = PLAIN[row].op;
    if (it->op == OP_CVT) {
        it->wide = strncmp(opcode, "cvt.u64", 7) == 0;
        it->from_wide = has(opcode + 4, ".u64");
    }
    for (int i = 0; i < 6; i++)
        if (it->op == OP_SETP && has(opcode, COMPARES[i])) it->compare = (enum compare)i;
    if (it->op == OP_MOV && accept(reader, "{")) {
        it->op = OP_UNPACK;
        it->at[0] = operand(reader, module, kernel, KIND_32);
        expect(reader, ",");
        it->at[1] = operand(reader, module, kernel, KIND_32);
        expect(reader, "}");
        expect(reader, ",");
        it->at[2] = operand(reader, module, kernel, KIND_64);
        return;
    }
    for (int i = 0; i < PLAIN[row].operands; i++) {
        if (i) expect(reader, ",");
        it->at[i] = operand(reader, module, kernel, kind_of(it, i));
    }
}

static void statement(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel) {
    kernel->code = grown(kernel->code, kernel->length, sizeof *kernel->code);
    struct instruction *it = &kernel->code[kernel->length++];
    enum kind kind;
    char opcode[NAME];
    memset(it, 0, sizeof *it);
    it->guard = -1;
    if (accept(reader, "@")) {
        it->negated = accept(reader, "!");
        it->guard = name_at(kernel, next(reader), &kind);
        if (it->guard < 0 || kind != KIND_PRED) fail(reader, "no predicate");
    }
    snprintf(opcode, sizeof opcode, "%s", next(reader));
    const char *type = strrchr(opcode, '.');
    it->wide = type != NULL && strstr(type, "64") != NULL;
    if (strcmp(opcode, "ret") == 0) it->op = OP_RET;
    else if (strcmp(opcode, "bra") == 0) {
        it->op = OP_BRA;
        snprintf(it->label, NAME, "%s", next(reader));
    } else if (strncmp(opcode, "ld.", 3) == 0 || strncmp(opcode, "st.", 3) == 0) {
        it->op = opcode[0] == 'l' ? OP_LD : OP_ST;
        memory_access(reader, module, kernel, it, opcode);
    } else if (strncmp(opcode, "atom.", 5) == 0 && (has(opcode, ".add") || has(opcode, ".min"))) {
        it->op = has(opcode, ".add") ? OP_ATOM_ADD : OP_ATOM_MIN;
        memory_access(reader, module, kernel, it, opcode);
    } else arithmetic(reader, module, kernel, it, opcode);
    expect(reader, ";");
}

static void body(struct reader *reader, struct ptx_module *module, struct ptx_kernel *kernel) {
    while (!reader->failed && peek(reader) != '}' && peek(reader) != 0) {
        struct reader before = *reader;
        if (accept(reader, ".reg")) {
            registers(reader, kernel);
            continue;
        }
        char label[NAME];
        snprintf(label, sizeof label, "%s", next(reader));
        if (!accept(reader, ":")) {
            *reader = before;
            statement(reader, module, kernel);
        } else if (kernel->label_count < 64) {
            snprintf(kernel->labels[kernel->label_count].name, NAME, "%s", label);
            kernel->labels[kernel->label_count++].place = kernel->length;
        } else fail(reader, "too many labels");
    }
    expect(reader, "}");
    for (int i = 0; i < kernel->length; i++) {
        if (kernel->code[i].op != OP_BRA) continue;
        kernel->code[i].target = -1;
        for (int j = 0; j < kernel->label_count; j++)
            if (strcmp(kernel->labels[j].name, kernel->code[i].label) == 0)
                kernel->code[i].target = kernel->labels[j].place;
        if (kernel->code[i].target < 0) fail(reader, "no such label");
    }
}

static void entry(struct reader *reader, struct ptx_module *module) {
    struct ptx_kernel *kernel = calloc(1, sizeof *kernel);
    kernel->next = module->kernels;
    module->kernels = kernel;
    snprintf(kernel->name, NAME, "%s", next(reader));
    kernel->tid = declare(kernel, "%tid.x", KIND_32);
    kernel->ctaid = declare(kernel, "%ctaid.x", KIND_32);
    kernel->nctaid = declare(kernel, "%nctaid.x", KIND_32);
    kernel->ntid = declare(kernel, "%ntid.x", KIND_32);
    expect(reader, "(");
    while (accept(reader, ".param") && kernel->parameter_count < 16) {
        int at = kernel->parameter_count++;
        kernel->parameters[at].wide = strstr(next(reader), "64") != NULL;
        snprintf(kernel->parameters[at].name, NAME, "%s", next(reader));
        accept(reader, ",");
    }
    expect(reader, ")");
    if (accept(reader, ".reqntid")) {
        kernel->block = (unsigned)atoi(next(reader));
        while (accept(reader, ",")) next(reader);
    }
    if (accept(reader, ".minnctapersm")) next(reader); /* registers do not run out here */
    expect(reader, "{");
    body(reader, module, kernel);
}

struct ptx_module *ptx_parse(const char *text, char *problem, size_t size) {
    struct ptx_module *module = calloc(1, sizeof *module);
    struct reader reader = {.at = text, .line = 1, .problem = problem, .size = size};
    while (!reader.failed && next(&reader)[0]) {
        if (strcmp(reader.word, ".entry") == 0) entry(&reader, module);
        else if (strcmp(reader.word, ".shared") == 0) {
            expect(&reader, ".align");
            next(&reader);
            next(&reader);
            snprintf(module->shared, NAME, "%s", next(&reader));
            expect(&reader, "[");
            expect(&reader, "]");
            expect(&reader, ";");
        } else if (strcmp(reader.word, ".version") == 0 || strcmp(reader.word, ".target") == 0 ||
                   strcmp(reader.word, ".address_size") == 0) next(&reader);
        else if (strcmp(reader.word, ".visible") != 0 && strcmp(reader.word, ".extern") != 0)
            fail(&reader, "unknown directive");
    }
    if (!reader.failed && module->kernels != NULL) return module;
    fail(&reader, "no kernel");
    ptx_free(module);
    return NULL;
}

void ptx_free(struct ptx_module *module) {
    while (module->kernels != NULL) {
        struct ptx_kernel *kernel = module->kernels;
        module->kernels = kernel->next;
        free(kernel->code);
        free(kernel->names);
        free(kernel->constants);
        free(kernel);
    }
    free(module);
}

struct ptx_kernel *ptx_find(struct ptx_module *module, const char *name) {
    struct ptx_kernel *kernel = module->kernels;
    while (kernel != NULL && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    return kernel;
}

unsigned ptx_block(const struct ptx_kernel *kernel) { return kernel->block; }

/* --- running ----------------------------------------------------------------------------- */

struct machine {
    const struct ptx_kernel *kernel;
    struct ptx_launch *launch;
    uint32_t (*r)[LANES];
    uint64_t (*d)[LANES];
    uint8_t (*p)[LANES];
    unsigned char *shared;
    int lanes;
    uint8_t alive[LANES], on[LANES];
    int full;            /* all lanes are on */
    uint64_t allowed_low, allowed_high; /* the range allowed last */
};

#define EACH(...)                                                      \
    do {                                                               \
        if (m->full) for (int l = 0; l < LANES; l++) { __VA_ARGS__; }  \
        else for (int l = 0; l < LANES; l++) if (m->on[l]) { __VA_ARGS__; } \
    } while (0)
#define BOTH(expression)                                                                     \
    do {                                                                                     \
        if (it->wide) {                                                                      \
            uint64_t *o = m->d[it->at[0]], *a = m->d[it->at[1]], *b = m->d[it->at[2]];       \
            EACH(o[l] = expression);                                                         \
        } else {                                                                             \
            uint32_t *o = m->r[it->at[0]], *a = m->r[it->at[1]], *b = m->r[it->at[2]];       \
            EACH(o[l] = expression);                                                         \
        }                                                                                    \
    } while (0)
#define COMPARE(sign)                                                                        \
    do {                                                                                     \
        uint8_t *o = m->p[it->at[0]];                                                        \
        if (it->wide) {                                                                      \
            uint64_t *a = m->d[it->at[1]], *b = m->d[it->at[2]];                             \
            EACH(o[l] = a[l] sign b[l]);                                                     \
        } else {                                                                             \
            uint32_t *a = m->r[it->at[1]], *b = m->r[it->at[2]];                             \
            EACH(o[l] = a[l] sign b[l]);                                                     \
        }                                                                                    \
    } while (0)

static void shift(struct machine *m, const struct instruction *it) {
    uint32_t *b = m->r[it->at[2]];
    if (it->wide) {
        uint64_t *o = m->d[it->at[0]], *a = m->d[it->at[1]];
        if (it->op == OP_SHL) EACH(o[l] = b[l] > 63 ? 0 : a[l] << b[l]);
        else EACH(o[l] = b[l] > 63 ? 0 : a[l] >> b[l]);
    } else {
        uint32_t *o = m->r[it->at[0]], *a = m->r[it->at[1]];
        if (it->op == OP_SHL) EACH(o[l] = b[l] > 31 ? 0 : a[l] << b[l]);
        else EACH(o[l] = b[l] > 31 ? 0 : a[l] >> b[l]);
    }
}

static void set_predicate(struct machine *m, const struct instruction *it) {
    switch (it->compare) {
    case CMP_EQ: COMPARE(==); break;
    case CMP_NE: COMPARE(!=); break;
    case CMP_LT: COMPARE(<); break;
    case CMP_LE: COMPARE(<=); break;
    case CMP_GT: COMPARE(>); break;
    case CMP_GE: COMPARE(>=); break;
    }
}

static void move(struct machine *m, const struct instruction *it) {
    if (it->op == OP_UNPACK) {
        uint32_t *low = m->r[it->at[0]], *high = m->r[it->at[1]];
        uint64_t *a = m->d[it->at[2]];
        EACH(low[l] = (uint32_t)a[l]; high[l] = (uint32_t)(a[l] >> 32));
    } else if (it->op == OP_CVT && it->wide != it->from_wide) {
        if (it->wide) {
            uint64_t *o = m->d[it->at[0]];
            uint32_t *a = m->r[it->at[1]];
            EACH(o[l] = a[l]);
        } else {
            uint32_t *o = m->r[it->at[0]];
            uint64_t *a = m->d[it->at[1]];
            EACH(o[l] = (uint32_t)a[l]);
        }
    } else if (it->wide) {
        uint64_t *o = m->d[it->at[0]], *a = m->d[it->at[1]];
        EACH(o[l] = a[l]);
    } else {
        uint32_t *o = m->r[it->at[0]], *a = m->r[it->at[1]];
        EACH(o[l] = a[l]);
    }
}

static void parameter(struct machine *m, const struct instruction *it) {
    const void *at = m->launch->parameters[it->parameter];
    if (it->wide) {
        uint64_t value;
        memcpy(&value, at, 8);
        EACH(m->d[it->at[1]][l] = value);
    } else {
        uint32_t value;
        memcpy(&value, at, 4);
        EACH(m->r[it->at[1]][l] = value);
    }
}

static int reachable(struct machine *m, uint64_t low, uint64_t high) {
    if (low >= m->allowed_low && high <= m->allowed_high) return 1;
    if (!m->launch->memory.allowed(m->launch->memory.state, low, high)) return 0;
    if (high == m->allowed_low || low == m->allowed_high) { /* keeps growing along a pass */
        m->allowed_low = low < m->allowed_low ? low : m->allowed_low;
        m->allowed_high = high > m->allowed_high ? high : m->allowed_high;
    } else {
        m->allowed_low = low;
        m->allowed_high = high;
    }
    return 1;
}

/* The range the lanes that are on touch; 0 when some address is nobody's. */
static int within(struct machine *m, const uint64_t *base, int64_t offset, uint64_t size,
                  uint64_t *low, uint64_t *high) {
    uint64_t least = UINT64_MAX, most = 0;
    EACH(least = base[l] < least ? base[l] : least; most = base[l] > most ? base[l] : most);
    *low = least + (uint64_t)offset;
    *high = most + (uint64_t)offset + size;
    if (least > most || reachable(m, *low, *high)) return 1;
    int good = 1;
    EACH(good &= reachable(m, base[l] + (uint64_t)offset, base[l] + (uint64_t)offset + size));
    return good;
}

static int lanes_on(const struct machine *m) {
    int count = 0;
    if (m->full) return LANES;
    for (int l = 0; l < LANES; l++) count += m->on[l];
    return count;
}

static int global_access(struct machine *m, const struct instruction *it) {
    const uint64_t *base = m->d[it->at[0]];
    size_t each = it->wide ? 8 : 4, size = each * (size_t)it->vector;
    uint64_t low, high;
    if (!within(m, base, it->offset, size, &low, &high)) return -1;
    if (low > high) return 0; /* no lane is on */
    m->launch->bytes += size * (uint64_t)lanes_on(m);
    if (it->vector == 4 && !it->wide) {
        uint32_t *a = m->r[it->at[1]], *b = m->r[it->at[2]], *c = m->r[it->at[3]],
                 *d = m->r[it->at[4]];
        if (it->op == OP_ST)
            EACH(uint32_t *w = (uint32_t *)(uintptr_t)(base[l] + (uint64_t)it->offset);
                 w[0] = a[l]; w[1] = b[l]; w[2] = c[l]; w[3] = d[l]);
        else
            EACH(const uint32_t *w = (uint32_t *)(uintptr_t)(base[l] + (uint64_t)it->offset);
                 a[l] = w[0]; b[l] = w[1]; c[l] = w[2]; d[l] = w[3]);
    } else {
        for (int v = 0; v < it->vector; v++) {
            unsigned char *file = it->wide ? (unsigned char *)m->d[it->at[1 + v]]
                                           : (unsigned char *)m->r[it->at[1 + v]];
            EACH(unsigned char *w = (unsigned char *)(uintptr_t)(base[l] + (uint64_t)it->offset) +
                                    each * (size_t)v;
                 if (it->op == OP_ST) memcpy(w, file + each * (size_t)l, each);
                 else memcpy(file + each * (size_t)l, w, each));
        }
    }
    if (it->op == OP_ST) m->launch->memory.stored(m->launch->memory.state, low, high);
    return 0;
}

static int atomic(struct machine *m, const struct instruction *it) {
    const uint64_t *base = m->d[it->at[0]], *value = m->d[it->at[1]];
    uint64_t *old = m->d[it->at[2]], low, high;
    if (!within(m, base, it->offset, 8, &low, &high)) return -1;
    EACH(uint64_t *w = (uint64_t *)(uintptr_t)(base[l] + (uint64_t)it->offset);
         uint64_t before = *w, given = value[l];
         *w = it->op == OP_ATOM_ADD ? before + given : given < before ? given : before;
         old[l] = before);
    return 0;
}

static int shared_access(struct machine *m, const struct instruction *it) {
    const uint32_t *base = m->r[it->at[0]];
    size_t size = 4 * (size_t)it->vector;
    int good = !it->wide;
    EACH(uint64_t at = base[l] + (uint64_t)it->offset;
         if (at + size > m->launch->shared_bytes) { good = 0; continue; }
         for (int v = 0; v < it->vector; v++) {
             uint32_t *file = &m->r[it->at[1 + v]][l];
             if (it->op == OP_ST) memcpy(m->shared + at + 4 * v, file, 4);
             else memcpy(file, m->shared + at + 4 * v, 4);
         });
    return good ? 0 : -1;
}

/* Every lane's value from the lane of its warp whose number differs in these bits. All lanes that
 * live have to be here: whoever is not gives no value. */
static int exchange(struct machine *m, const struct instruction *it) {
    const uint32_t *a = m->r[it->at[1]], *b = m->r[it->at[2]], *mask = m->r[it->at[4]];
    uint32_t found[LANES];
    for (int l = 0; l < LANES; l++) {
        int from = l ^ (int)(b[l] & 31);
        if (!m->on[l]) continue;
        if (!m->on[from] || mask[l] != 0xFFFFFFFFu) return -1;
        found[l] = a[from];
    }
    EACH(m->r[it->at[0]][l] = found[l]);
    return 0;
}

static int execute(struct machine *m, const struct instruction *it) {
    switch (it->op) {
    case OP_ADD: BOTH(a[l] + b[l]); break;
    case OP_SUB: BOTH(a[l] - b[l]); break;
    case OP_MUL_LO: BOTH(a[l] * b[l]); break;
    case OP_AND: BOTH(a[l] & b[l]); break;
    case OP_OR: BOTH(a[l] | b[l]); break;
    case OP_XOR: BOTH(a[l] ^ b[l]); break;
    case OP_MAD_LO:
        if (it->wide) {
            uint64_t *c = m->d[it->at[3]];
            BOTH(a[l] * b[l] + (uint64_t)c[l]);
        } else {
            uint32_t *c = m->r[it->at[3]];
            BOTH(a[l] * b[l] + c[l]);
        }
        break;
    case OP_MUL_WIDE: {
        uint64_t *o = m->d[it->at[0]];
        uint32_t *a = m->r[it->at[1]], *b = m->r[it->at[2]];
        EACH(o[l] = (uint64_t)a[l] * b[l]);
        break;
    }
    case OP_SHL: case OP_SHR: shift(m, it); break;
    case OP_MOV: case OP_UNPACK: case OP_CVT: move(m, it); break;
    case OP_SETP: set_predicate(m, it); break;
    case OP_SELP: {
        uint8_t *p = m->p[it->at[3]];
        BOTH(p[l] ? a[l] : b[l]);
        break;
    }
    case OP_LD: case OP_ST:
        if (it->space == SPACE_PARAM) parameter(m, it);
        else if (it->space == SPACE_SHARED) return shared_access(m, it);
        else return global_access(m, it);
        break;
    case OP_ATOM_ADD: case OP_ATOM_MIN: return atomic(m, it);
    case OP_SHFL: return exchange(m, it);
    case OP_BRA: case OP_RET: break;
    }
    return 0;
}

/* Lanes at `pc` become those that are on; the result is how many. */
static int gather(struct machine *m, const int *pcs, int pc) {
    int count = 0;
    for (int l = 0; l < LANES; l++) count += m->on[l] = m->alive[l] && pcs[l] == pc;
    m->full = count == LANES;
    return count;
}

static int guarded(struct machine *m, const struct instruction *it) {
    int count = 0;
    const uint8_t *p = m->p[it->guard];
    for (int l = 0; l < LANES; l++) count += m->on[l] &= (uint8_t)(p[l] != it->negated);
    m->full = count == LANES;
    return count;
}

/* Runs LANES threads from beginning to end. */
static int run_lanes(struct machine *m) {
    int pcs[LANES] = {0}, pc = 0, together = 1, left = m->lanes;
    int count = gather(m, pcs, 0);
    while (left > 0) {
        if (!together) {
            pc = INT32_MAX;
            for (int l = 0; l < LANES; l++) if (m->alive[l] && pcs[l] < pc) pc = pcs[l];
            count = gather(m, pcs, pc);
            together = count == left;
        }
        if (pc >= m->kernel->length) return -1;
        const struct instruction *it = &m->kernel->code[pc];
        int acting = count;
        if (it->guard >= 0) acting = guarded(m, it);
        m->launch->instructions += (uint64_t)acting;
        if (acting > 0 && execute(m, it) != 0) return -1;
        int to = it->op == OP_BRA ? it->target : pc + 1;
        if (it->op == OP_RET) {
            left -= acting;
            for (int l = 0; l < LANES; l++) m->alive[l] &= (uint8_t)!m->on[l];
        }
        if (together && (acting == count || (it->op != OP_BRA && it->op != OP_RET))) {
            pc = acting ? to : pc + 1;
            if (it->guard >= 0) { /* those guarded off act again from here */
                memcpy(m->on, m->alive, LANES);
                m->full = left == LANES;
            }
            continue;
        }
        if (together && acting == 0) {
            pc++;
            memcpy(m->on, m->alive, LANES);
            m->full = left == LANES;
            continue;
        }
        if (together) for (int l = 0; l < LANES; l++) pcs[l] = pc;
        together = 0;
        for (int l = 0; l < LANES; l++)
            if (pcs[l] == pc) pcs[l] = m->on[l] ? to : pc + 1;
    }
    return 0;
}

static void ready(struct machine *m, unsigned block, unsigned first) {
    const struct ptx_kernel *kernel = m->kernel;
    for (int i = 0; i < kernel->constant_count; i++) {
        const struct constant *c = &kernel->constants[i];
        for (int l = 0; l < LANES; l++) {
            if (c->kind == KIND_64) m->d[c->at][l] = c->value;
            else m->r[c->at][l] = (uint32_t)c->value;
        }
    }
    m->lanes = (int)(m->launch->block - first < LANES ? m->launch->block - first : LANES);
    for (int l = 0; l < LANES; l++) {
        m->alive[l] = l < m->lanes;
        m->r[kernel->tid][l] = first + (unsigned)l;
        m->r[kernel->ctaid][l] = block;
        m->r[kernel->nctaid][l] = m->launch->grid;
        m->r[kernel->ntid][l] = m->launch->block;
    }
}

int ptx_run(const struct ptx_kernel *kernel, struct ptx_launch *launch) {
    struct machine machine = {.kernel = kernel, .launch = launch};
    int result = 0;
    machine.p = calloc((size_t)kernel->count[KIND_PRED] + 1, LANES);
    machine.r = calloc((size_t)kernel->count[KIND_32] + 1, LANES * 4);
    machine.d = calloc((size_t)kernel->count[KIND_64] + 1, LANES * 8);
    machine.shared = malloc((size_t)launch->shared_bytes + 1);
    for (unsigned block = 0; block < launch->grid && result == 0; block++)
        for (unsigned first = 0; first < launch->block && result == 0; first += LANES) {
            ready(&machine, block, first);
            result = run_lanes(&machine);
        }
    free(machine.p);
    free(machine.r);
    free(machine.d);
    free(machine.shared);
    return result;
}
