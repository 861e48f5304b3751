/* clblast.c: the OpenCL device's products beside CLBlast's, in f32, on the same device and in turns. Neither is linked: CLBlast
 * is opened as libclblast.so.1, our plug-in by its path. Values are random, and the results must agree.
 *
 *     cc -O2 -Iinclude bench/peers/clblast.c -lOpenCL -ldl -lm -o clblast
 *     ./clblast build/release/libnebula-i-opencl.so 0 7        device 0; the median of 7 turns
 *
 * The products are those of mlm-mini's layers (1,024 rows) or, with a fourth argument "base", of mlm-base's. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <math.h>
#include <nebula/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TURNED = 112, TURNS = 64 };
typedef int (*sgemm_fn)(int layout, int a_turned, int b_turned, size_t m, size_t n, size_t k, float alpha,
                        cl_mem a, size_t a_first, size_t lda, cl_mem b, size_t b_first, size_t ldb,
                        float beta, cl_mem c, size_t c_first, size_t ldc, cl_command_queue *queue,
                        cl_event *event);

struct both {
    const struct neb_device_ops *ops;
    void *dev;
    sgemm_fn sgemm;
    cl_context context;
    cl_command_queue queue;
};

struct shape {
    const char *name;
    size_t m, n, k;
    int ta, tb;
};

static void die(const char *what)
{
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Devices count over all platforms, as in our plug-in. */
static cl_device_id device_at(int index)
{
    cl_platform_id platforms[16];
    cl_device_id devices[16];
    cl_uint n = 0, found;
    if (clGetPlatformIDs(16, platforms, &n)) die("clGetPlatformIDs");
    for (cl_uint p = 0; p < n && p < 16; p++) {
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 16, devices, &found)) continue;
        if (index < (int)found) return devices[index];
        index -= (int)found;
    }
    die("that device");
    return NULL;
}

static void start(struct both *b, const char *plugin, int index)
{
    void *ours = dlopen(plugin, RTLD_NOW), *theirs = dlopen("libclblast.so.1", RTLD_NOW);
    if (!ours || !theirs) die(dlerror());
    const struct neb_device_ops *(*table)(uint32_t);
    *(void **)&table = dlsym(ours, "neb_device_plugin");
    *(void **)&b->sgemm = dlsym(theirs, "CLBlastSgemm");
    const struct neb_device_config config = {.compute = NEB_F32, .index = index};
    if (!table || !b->sgemm || !(b->ops = table(NEB_DEVICE_ABI)) || b->ops->open(&config, &b->dev))
        die("opening our device");
    cl_device_id id = device_at(index);
    b->context = clCreateContext(NULL, 1, &id, NULL, NULL, NULL);
    b->queue = b->context ? clCreateCommandQueue(b->context, id, 0, NULL) : NULL;
    if (!b->queue) die("clCreateCommandQueue");
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(struct both *w, const struct shape *s, int turns)
{
    const size_t n[3] = {s->m * s->k, s->k * s->n, s->m * s->n};
    float *host[3];
    void *ours[3];
    cl_mem theirs[3];
    for (int i = 0; i < 3; i++) {
        host[i] = malloc(n[i] * 4);
        for (size_t j = 0; host[i] && j < n[i]; j++) host[i][j] = (float)rand() / (float)RAND_MAX - 0.5f;
        theirs[i] = clCreateBuffer(w->context, CL_MEM_READ_WRITE, n[i] * 4, NULL, NULL);
        if (!host[i] || !theirs[i] || w->ops->alloc(w->dev, n[i] * 4, &ours[i]) ||
            w->ops->upload(w->dev, ours[i], host[i], n[i] * 4) ||
            clEnqueueWriteBuffer(w->queue, theirs[i], CL_TRUE, 0, n[i] * 4, host[i], 0, NULL, NULL))
            die("memory");
    }
    const size_t lda = s->ta ? s->m : s->k, ldb = s->tb ? s->k : s->n;
    const struct neb_gemm g = {ours[0],
                               ours[1],
                               ours[2],
                               (int64_t)s->m,
                               (int64_t)s->n,
                               (int64_t)s->k,
                               (int64_t)lda,
                               (int64_t)ldb,
                               (int64_t)s->n,
                               1,
                               0,
                               0,
                               0,
                               s->ta,
                               s->tb,
                               1,
                               0,
                               NEB_F32,
                               NEB_F32};
    double took[2][TURNS];
    for (int t = -2; t < turns; t++) { /* the first ones compile and measure */
        double began = now();
        if (w->ops->gemm(w->dev, &g) || w->ops->sync(w->dev)) die("our product");
        double middle = now();
        if (w->sgemm(ROW_MAJOR, s->ta ? TURNED : PLAIN, s->tb ? TURNED : PLAIN, s->m, s->n, s->k, 1,
                     theirs[0], 0, lda, theirs[1], 0, ldb, 0, theirs[2], 0, s->n, &w->queue, NULL) ||
            clFinish(w->queue))
            die("CLBlast's product");
        if (t >= 0) took[0][t] = middle - began, took[1][t] = now() - middle;
    }
    float *c = malloc(n[2] * 4);
    double worst = 0;
    if (!c || w->ops->download(w->dev, c, ours[2], n[2] * 4) ||
        clEnqueueReadBuffer(w->queue, theirs[2], CL_TRUE, 0, n[2] * 4, host[2], 0, NULL, NULL))
        die("reading back");
    for (size_t i = 0; i < n[2]; i++) worst = fmax(worst, fabs((double)c[i] - host[2][i]));
    for (int i = 0; i < 2; i++) qsort(took[i], (size_t)turns, sizeof took[i][0], by_size);
    const double work = 2e-9 * (double)s->m * (double)s->n * (double)s->k;
    double sum = 0;
    for (size_t i = 0; i < n[2]; i++) sum += fabs((double)c[i]);
    if (!(sum > 0)) die("a result with values");
    printf(
        "%-26s %6zu x %6zu x %6zu  ours %8.1f GFlop/s, CLBlast %8.1f, ours / CLBlast %.2f, difference %.1e\n",
        s->name, s->m, s->n, s->k, work / took[0][turns / 2], work / took[1][turns / 2],
        took[1][turns / 2] / took[0][turns / 2], worst);
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        free(host[i]);
        w->ops->free(w->dev, ours[i]);
        clReleaseMemObject(theirs[i]);
    }
    free(c);
}

int main(int argc, char **argv)
{
    struct both w = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: clblast PLUGIN DEVICE TURNS [base]\n");
        return 2;
    }
    int turns = atoi(argv[3]);
    if (turns < 1) turns = 1;
    if (turns > TURNS) turns = TURNS;
    start(&w, argv[1], atoi(argv[2]));
    const int base = argc > 4 && !strcmp(argv[4], "base");
    const size_t d = base ? 768 : 256, rows = base ? 8192 : 1024, v = base ? 30000 : 8000;
    const struct shape shapes[] = {{"forward", rows, 4 * d, d, 0, 1},
                                   {"forward, back to d", rows, d, 4 * d, 0, 1},
                                   {"gradient of the input", rows, d, 4 * d, 0, 0},
                                   {"gradient of the weights", 4 * d, d, rows, 1, 0},
                                   {"logits", rows / 4, v, d, 0, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) compare(&w, &shapes[i], turns);
    w.ops->close(w.dev);
    return 0;
}
