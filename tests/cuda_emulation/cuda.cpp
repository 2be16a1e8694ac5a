// A CUDA runtime, driver and cuBLAS whose device is the host: memory is host memory, kernels are
// PTX translated to C++. EMU_MODE=run (default): kernels run. EMU_MODE=count: nothing runs,
// launches are counted and logged.
#include <cuda.h>
#define CUDART_NO_PROTO
#include <driver_types.h>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <string>
#include <vector>
#include <map>
#include <mutex>
#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <cuda_runtime_api.h>
#include "emu.h"
#include "products.h"
extern "C" const unsigned emu_shared = 0;

// Other ranks of this host open this process's memory (IPC handles, NCCL), also where ptrace is
// restricted to parents.
__attribute__((constructor)) static void let_ranks_in() {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

bool emu::counting() {
  static bool c = getenv("EMU_MODE") && !strcmp(getenv("EMU_MODE"), "count");
  return c;
}
using emu::counting;
static int num_devices() {
  static int n = getenv("EMU_DEVICES") ? atoi(getenv("EMU_DEVICES")) : 1;
  return n;
}
static thread_local int g_device = 0;
static thread_local cudaError_t g_last = cudaSuccess;
static std::mutex g_lock;
struct Alloc {
  size_t size;
  int fd;
  int device;
  bool host;
};
static std::map<char*, Alloc> g_allocs;
static size_t g_used = 0;
static const size_t TOTAL = (size_t)141 << 30;

// ---- counters, read by Python through ctypes ---------------------------------------------------
extern "C" {
unsigned long long emu_launches = 0, emu_graph_launches = 0, emu_replayed = 0, emu_gemms = 0,
                   emu_mallocs = 0, emu_memcpys = 0, emu_memsets = 0, emu_syncs = 0, emu_events = 0,
                   emu_waits = 0, emu_d2h = 0, emu_h2d = 0, emu_bytes_h2d = 0;
unsigned long long emu_bytes_copied = 0, emu_bytes_set = 0, emu_bytes_gemm = 0,
                   emu_bytes_loaded = 0, emu_bytes_stored = 0;
int emu_logging = 0;
}
static FILE* g_log = nullptr;
void emu::log(const char* format, ...) {
  if (!emu_logging) return;
  if (!g_log) {
    const char* p = getenv("EMU_LOG");
    g_log = p ? fopen(p, "a") : stderr;
    setvbuf(g_log, 0, _IOLBF, 0);
  }
  va_list a;
  va_start(a, format);
  vfprintf(g_log, format, a);
  va_end(a);
}
#define logf_ emu::log
extern "C" void emu_mark(const char* s) { logf_("mark %s\n", s); }

// ---- streams: capture ---------------------------------------------------------------------------
struct Node {
  int kind;
  CUfunction f;
  unsigned g[3], b[3];
  unsigned shared;
  std::vector<char> params;
  std::vector<size_t> offs;
  void* dst;
  const void* src;
  size_t n;
  int value;
  std::function<void()> product;
  void (*host)(void*);
  void* user;
};
struct Stream {
  bool capturing = false;
  std::vector<Node> nodes;
  unsigned flags = 0;
};
static Stream* stream_of(void* s) {
  return (s == 0 || s == (void*)1 || s == (void*)2) ? nullptr : (Stream*)s;
}
static bool capturing(void* s) {
  Stream* x = stream_of(s);
  return x && x->capturing;
}
static int g_captures = 0;

// ---- cudart -------------------------------------------------------------------------------------
extern "C" {
#define OK return cudaSuccess
static cudaError_t fail(cudaError_t e) {
  g_last = e;
  return e;
}

cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  OK;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = 13020;
  OK;
}
cudaError_t cudaGetDevice(int* d) {
  *d = g_device;
  OK;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= num_devices()) return fail(cudaErrorInvalidDevice);
  g_device = d;
  OK;
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = num_devices();
  OK;
}
const char* cudaGetErrorName(cudaError_t e) {
  static thread_local char b[64];
  snprintf(b, 64, "cudaError%d", (int)e);
  return b;
}
const char* cudaGetErrorString(cudaError_t e) { return "emulated error"; }
cudaError_t cudaGetLastError() {
  auto e = g_last;
  g_last = cudaSuccess;
  return e;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  switch ((int)a) {
    case cudaDevAttrComputeCapabilityMajor:
      *v = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *v = 0;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = 132;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *v = 1024;
      break;
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *v = 49152;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = 232448;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = 2048;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *v = 1;
      break;
    case cudaDevAttrMaxGridDimX:
      *v = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *v = 65535;
      break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *v = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *v = 64;
      break;
    default:
      *v = 1;
  }
  OK;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200 (emulated)");
  p->totalGlobalMem = TOTAL;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->maxThreadsPerMultiProcessor = 2048;
  p->l2CacheSize = 60 << 20;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = (char)(17 + i + d);
  OK;
}
cudaError_t cudaDeviceSynchronize() {
  ++emu_syncs;
  OK;
}
cudaError_t cudaDeviceCanAccessPeer(int* c, int, int) {
  *c = 1;
  OK;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { OK; }
cudaError_t cudaDeviceDisablePeerAccess(int) { OK; }
cudaError_t cudaDeviceGetPCIBusId(char* b, int n, int d) {
  snprintf(b, n, "0000:%02x:00.0", d);
  OK;
}
cudaError_t cudaDeviceGetByPCIBusId(int* d, const char*) {
  *d = 0;
  OK;
}
cudaError_t cudaDeviceGetLimit(size_t* v, cudaLimit) {
  *v = 1024;
  OK;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { OK; }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  *t = TOTAL;
  *f = TOTAL - g_used;
  OK;
}

static void* take(size_t n, bool host) {
  ++emu_mallocs;
  size_t m = (std::max<size_t>(n, 1) + 4095) & ~(size_t)4095;
  int fd = -1;
  void* p;
  if (host || counting())
    p = mmap(0, m, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  else {
    fd = memfd_create("gpu", 0);
    if (ftruncate(fd, m)) return 0;
    p = mmap(0, m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (p == MAP_FAILED) return 0;
  if (!host && !counting() && m <= (256 << 20))
    memset(p, 0xE5, m);  // poison: device memory is not zeroed
  std::lock_guard<std::mutex> l(g_lock);
  g_allocs[(char*)p] = {m, fd, g_device, host};
  g_used += m;
  logf_("malloc %zu\n", n);
  return p;
}
static cudaError_t give(void* p) {
  if (!p) OK;
  std::lock_guard<std::mutex> l(g_lock);
  auto it = g_allocs.find((char*)p);
  if (it == g_allocs.end()) return fail(cudaErrorInvalidValue);
  g_used -= it->second.size;
  munmap(p, it->second.size);
  if (it->second.fd >= 0) close(it->second.fd);
  g_allocs.erase(it);
  OK;
}
cudaError_t cudaMalloc(void** p, size_t n) {
  if (n > TOTAL) return fail(cudaErrorMemoryAllocation);
  *p = take(n, false);
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaMallocFromPoolAsync(void** p, size_t n, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(p, n);
}
cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaFree(void* p) { return give(p); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return give(p); }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  *p = take(n, true);
  OK;
}
cudaError_t cudaFreeHost(void* p) { return give(p); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { OK; }
cudaError_t cudaHostUnregister(void*) { OK; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* q) {
  memset(a, 0, sizeof *a);
  std::lock_guard<std::mutex> l(g_lock);
  auto it = g_allocs.upper_bound((char*)q);
  if (it != g_allocs.begin()) {
    --it;
    if ((char*)q < it->first + it->second.size) {
      a->type = it->second.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
      a->device = it->second.device;
      a->devicePointer = (void*)q;
      a->hostPointer = it->second.host ? (void*)q : 0;
      OK;
    }
  }
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2;
  a->hostPointer = (void*)q;
  OK;
}
static cudaError_t copy(void* d, const void* s, size_t n, int kind, void* st, bool async) {
  if (capturing(st)) {
    if (!async) return fail(cudaErrorStreamCaptureUnsupported);
    Node x;
    x.kind = 1;
    x.dst = d;
    x.src = s;
    x.n = n;
    stream_of(st)->nodes.push_back(x);
    OK;
  }
  ++emu_memcpys;
  emu_bytes_copied += n;
  if (kind == 2) ++emu_d2h;
  if (kind == 1) {
    ++emu_h2d;
    emu_bytes_h2d += n;
  }
  logf_("memcpy kind=%d n=%zu\n", kind, n);
  if (counting() && n > (1 << 20)) OK;
  memmove(d, s, n);
  OK;
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  return copy(d, s, n, k, 0, false);
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
  return copy(d, s, n, k, st, true);
}
cudaError_t cudaMemcpyPeer(void* d, int, const void* s, int, size_t n) {
  return copy(d, s, n, 3, 0, false);
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  return copy(d, s, n, 3, st, true);
}
static cudaError_t set(void* d, int v, size_t n, void* st) {
  if (capturing(st)) {
    Node x;
    x.kind = 2;
    x.dst = d;
    x.value = v;
    x.n = n;
    stream_of(st)->nodes.push_back(x);
    OK;
  }
  ++emu_memsets;
  emu_bytes_set += n;
  logf_("memset n=%zu\n", n);
  if (counting() && n > (1 << 20)) OK;
  memset(d, v, n);
  OK;
}
cudaError_t cudaMemset(void* d, int v, size_t n) { return set(d, v, n, 0); }
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t st) { return set(d, v, n, st); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  OK;
}
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { OK; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
  *p = (cudaMemPool_t)8;
  OK;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* p, int) {
  *p = (cudaMemPool_t)8;
  OK;
}
cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t) { OK; }
cudaError_t cudaMemPoolCreate(cudaMemPool_t* p, const cudaMemPoolProps*) {
  *p = (cudaMemPool_t)8;
  OK;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { OK; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { OK; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(uint64_t*)v = 0;
  OK;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { OK; }
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  *s = (cudaStream_t) new Stream;
  OK;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) {
  auto* x = new Stream;
  x->flags = f;
  *s = (cudaStream_t)x;
  OK;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int) {
  return cudaStreamCreateWithFlags(s, f);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { OK; }
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned* f) {
  *f = stream_of(s) ? stream_of(s)->flags : 0;
  OK;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* f) {
  *f = 0;
  OK;
}
static cudaError_t bad_in_capture(void* s) {
  if (capturing(s)) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  OK;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  ++emu_syncs;
  logf_("sync\n");
  return bad_in_capture(s);
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return bad_in_capture(s); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t, unsigned) {
  ++emu_waits;
  OK;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t c, void* u, unsigned) {
  c(s, cudaSuccess, u);
  OK;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* u) {
  if (capturing(s)) {
    Node x;
    x.kind = 4;
    x.host = f;
    x.user = u;
    stream_of(s)->nodes.push_back(x);
    OK;
  }
  f(u);
  OK;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
  *e = (cudaEvent_t) new double(0);
  OK;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = (cudaEvent_t) new double(0);
  OK;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete (double*)e;
  OK;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
  ++emu_events;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  *(double*)e = t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
  OK;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  ++emu_syncs;
  OK;
}
cudaError_t cudaEventQuery(cudaEvent_t) { OK; }
cudaError_t cudaEventElapsedTime(float* f, cudaEvent_t a, cudaEvent_t b) {
  *f = (float)(*(double*)b - *(double*)a);
  OK;
}
cudaError_t cudaProfilerStart() { OK; }
cudaError_t cudaProfilerStop() { OK; }

struct IpcHandle {
  int magic, pid, fd;
  size_t size, offset;
};
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* h, void* p) {
  std::lock_guard<std::mutex> l(g_lock);
  auto it = g_allocs.find((char*)p);
  if (it == g_allocs.end() || (it->second.fd < 0 && !counting()))
    return fail(cudaErrorInvalidValue);
  memset(h, 0, sizeof *h);
  IpcHandle x = {0x1234, getpid(), it->second.fd, it->second.size, 0};
  memcpy(h, &x, sizeof x);
  OK;
}
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t h, unsigned flags) {
  IpcHandle x;
  memcpy(&x, &h, sizeof x);
  if (x.magic != 0x1234) return fail(cudaErrorInvalidValue);
  if (x.pid == getpid())
    return fail(cudaErrorDeviceUninitialized);  // a process cannot open its own
  if (counting()) {
    *p =
        mmap(0, x.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    std::lock_guard<std::mutex> l(g_lock);
    g_allocs[(char*)*p] = {x.size, -1, g_device, false};
    OK;
  }
  char path[64];
  snprintf(path, 64, "/proc/%d/fd/%d", x.pid, x.fd);
  int fd = open(path, O_RDWR);
  if (fd < 0) return fail(cudaErrorInvalidResourceHandle);
  *p = mmap(0, x.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::lock_guard<std::mutex> l(g_lock);
  g_allocs[(char*)*p] = {x.size, fd, g_device, false};
  OK;
}
cudaError_t cudaIpcCloseMemHandle(void* p) { return give(p); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return fail(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  auto* x = stream_of(s);
  if (!x) return fail(cudaErrorStreamCaptureUnsupported);
  x->capturing = true;
  x->nodes.clear();
  ++g_captures;
  OK;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* st) {
  static bool hide = getenv("EMU_HIDE_CAPTURE");
  *st = capturing(s) && !hide ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  OK;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  auto* x = stream_of(s);
  if (!x || !x->capturing) return fail(cudaErrorIllegalState);
  x->capturing = false;
  --g_captures;
  *g = (cudaGraph_t) new std::vector<Node>(x->nodes);
  OK;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) {
  *e = (cudaGraphExec_t) new std::vector<Node>(*(std::vector<Node>*)g);
  OK;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  delete (std::vector<Node>*)g;
  OK;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) {
  delete (std::vector<Node>*)g;
  OK;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { OK; }
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { OK; }
}
static CUresult run_kernel(Node& n);
extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
  logf_("graph launch %zu nodes\n", ((std::vector<Node>*)g)->size());
  unsigned long long by_hand = emu_launches;
  for (Node& n : *(std::vector<Node>*)g) {
    if (n.kind == 0)
      run_kernel(n);
    else if (n.kind == 1)
      copy(n.dst, n.src, n.n, 3, 0, true);
    else if (n.kind == 2)
      set(n.dst, n.value, n.n, 0);
    else if (n.kind == 3)
      n.product();
    else
      n.host(n.user);
  }
  ++emu_graph_launches;
  emu_replayed += emu_launches - by_hand;
  emu_launches = by_hand;
  OK;
}

// ---- fibers -------------------------------------------------------------------------------------
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void emu_switch(void** save, void* to);
static const size_t STACK = 256 << 10;
struct Block;
struct Fiber {
  void* sp = 0;
  char* stack = 0;
  Thr thr;
  Block* block;
  bool done;
  uint64_t bar_gen;
};
struct Warp {
  uint32_t alive = 0, arrived = 0;
  uint32_t val[32], snap[32];
  uint64_t val64[32], snap64[32];
  uint32_t gen[32];
  bool pred[32];
  uint32_t snap_pred[32];
  uint32_t bits[32];
};
struct Block {
  std::vector<Fiber>* fibers;
  int count, live;
  Warp warps[32];
  int waiting;
  uint64_t gen;
  int red[3];
  int red_out[3];
  void* main_sp;
  void (*run)(Thr*);
  Fiber* current;
  bool dead_lock;
  long spins;
};
static std::vector<Fiber> g_fibers;
static void fiber_main();
static Block* g_block;
static void yield(Thr* t) {
  Fiber* f = (Fiber*)t->fiber;
  emu_switch(&f->sp, g_block->main_sp);
}
static void fiber_main() {
  Block* b = g_block;
  Fiber* f = b->current;
  b->run(&f->thr);
  f->done = true;
  --b->live;
  f->thr.warp->alive &= ~(1u << (f->thr.lin & 31));
  emu_switch(&f->sp, b->main_sp);
  abort();
}
static void release(Block* b) {
  for (int i = 0; i < 3; ++i) b->red_out[i] = b->red[i];
  b->red[0] = 0;
  b->red[1] = 1;
  b->red[2] = 0;
  b->waiting = 0;
  ++b->gen;
}
extern "C" {
void emu_exit(Thr*) {}
void emu_trap(const char* s) {
  fprintf(stderr, "emu: device trap: %s\n", s);
  abort();
}
void emu_vprintf(char* f, char*) { fprintf(stderr, "emu: device printf: %s", f); }
uint64_t emu_clock() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void wait_bar(Thr* t) {
  Block* b = g_block;
  uint64_t g = b->gen;
  ++b->waiting;
  if (b->waiting >= b->live) {
    release(b);
    return;
  }
  while (b->gen == g) {
    yield(t);
    if (b->gen == g && b->waiting >= b->live) release(b);
  }
}
void emu_bar(Thr* t, uint32_t id, uint32_t n) {
  if (n && n != (uint32_t)g_block->count) emu_trap("partial barrier");
  wait_bar(t);
}
uint32_t emu_bar_red(Thr* t, uint32_t, bool p, int kind) {
  Block* b = g_block;
  b->red[0] += p;
  b->red[1] &= p;
  b->red[2] |= p;
  wait_bar(t);
  return b->red_out[kind];
}
static void meet(Thr* t, uint32_t mask) {
  Warp* w = t->warp;
  int lane = t->lin & 31;
  uint32_t g = w->gen[lane];
  w->arrived |= 1u << lane;
  if (!(mask >> lane & 1)) emu_trap("a lane outside its own mask");
  for (;;) {
    if (w->gen[lane] != g) return;
    uint32_t need = mask & w->alive;
    if ((w->arrived & need) == need) {
      for (int i = 0; i < 32; ++i)
        if (need >> i & 1) {
          w->snap[i] = w->val[i];
          w->snap64[i] = w->val64[i];
          w->snap_pred[i] = w->pred[i];
          w->bits[i] = need;
          ++w->gen[i];
        }
      w->arrived &= ~need;
      return;
    }
    yield(t);
  }
}
void emu_warp_sync(Thr* t, uint32_t mask) { meet(t, mask); }
uint32_t emu_shfl(Thr* t, int mode, uint32_t v, uint32_t b, uint32_t c, uint32_t mask, bool* p) {
  Warp* w = t->warp;
  int lane = t->lin & 31;
  w->val[lane] = v;
  meet(t, mask);
  uint32_t seg = (c >> 8) & 31, clamp = c & 31;
  int max = (lane & seg) | (clamp & ~seg & 31), min = lane & seg, j;
  bool ok;
  b &= 31;
  if (mode == 0) {
    j = lane - (int)b;
    ok = j >= max;
  } else if (mode == 1) {
    j = lane + (int)b;
    ok = j <= max;
  } else if (mode == 2) {
    j = lane ^ (int)b;
    ok = j <= max;
  } else {
    j = min | (b & ~seg & 31);
    ok = j <= max;
  }
  if (!ok) j = lane;
  *p = ok;
  if (!(mask >> j & 1)) emu_trap("shfl reads a lane outside the mask");
  return w->snap[j];
}
uint32_t emu_vote(Thr* t, int kind, bool p, uint32_t mask) {
  Warp* w = t->warp;
  int lane = t->lin & 31;
  w->pred[lane] = p;
  meet(t, mask);
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i)
    if ((w->bits[lane] >> i & 1) && w->snap_pred[i]) r |= 1u << i;
  if (kind == 3) return r;
  if (kind == 0) return r == w->bits[lane];
  if (kind == 1) return r != 0;
  return r == 0 || r == w->bits[lane];
}
uint32_t emu_match(Thr* t, int all, uint64_t v, uint32_t mask, bool* p) {
  Warp* w = t->warp;
  int lane = t->lin & 31;
  w->val64[lane] = v;
  meet(t, mask);
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i)
    if ((w->bits[lane] >> i & 1) && w->snap64[i] == v) r |= 1u << i;
  *p = r == w->bits[lane];
  return all ? (*p ? r : 0) : r;
}
uint32_t emu_redux(Thr* t, const char* k, int sg, uint32_t v, uint32_t mask) {
  Warp* w = t->warp;
  int lane = t->lin & 31;
  w->val[lane] = v;
  meet(t, mask);
  uint32_t r = v;
  bool first = true;
  for (int i = 0; i < 32; ++i)
    if (w->bits[lane] >> i & 1) {
      uint32_t x = w->snap[i];
      if (first) {
        r = x;
        first = false;
        continue;
      }
      if (!strcmp(k, "add"))
        r += x;
      else if (!strcmp(k, "and"))
        r &= x;
      else if (!strcmp(k, "or"))
        r |= x;
      else if (!strcmp(k, "xor"))
        r ^= x;
      else if (!strcmp(k, "min"))
        r = sg ? ((int)x < (int)r ? x : r) : std::min(x, r);
      else
        r = sg ? ((int)x > (int)r ? x : r) : std::max(x, r);
    }
  return r;
}
}

// ---- modules ------------------------------------------------------------------------------------
struct Function {
  const EmuEntry* e;
  unsigned shared;
  std::string name;
};
struct Module {
  void* dl;
  std::map<std::string, Function*> fs;
  const EmuGlobal* globals;
};
static std::string own_folder() {  // HOME/lib/libfakecuda.so -> HOME
  Dl_info i;
  char path[4096];
  if (!dladdr((void*)own_folder, &i) || !realpath(i.dli_fname, path)) return ".";
  std::string s = path;
  s = s.substr(0, s.rfind('/'));
  return s.substr(0, s.rfind('/'));
}
static std::string cache_dir() {
  const char* p = getenv("EMU_CACHE");
  return p ? p : own_folder() + "/cache/kernels";
}
static std::string quoted(const std::string& s) { return "'" + s + "'"; }
static uint64_t fnv(const char* s, size_t n) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < n; ++i) h = (h ^ (unsigned char)s[i]) * 1099511628211ull;
  return h;
}
static std::vector<std::string> entry_names(const char* ptx) {
  std::vector<std::string> r;
  const char* p = ptx;
  while ((p = strstr(p, ".entry"))) {
    p += 6;
    while (isspace(*p)) ++p;
    const char* q = p;
    while (*q && *q != '(' && !isspace(*q) && *q != '{') ++q;
    r.emplace_back(p, q);
    p = q;
  }
  return r;
}
extern "C" {
CUresult cuModuleLoadData(CUmodule* m, const void* image) {
  static std::mutex loading;
  std::lock_guard<std::mutex> one(loading);
  const char* s = (const char*)image;
  size_t n = strlen(s);
  auto* mod = new Module{};
  if (counting()) {
    for (auto& name : entry_names(s)) {
      auto* f = new Function{nullptr, 0, name};
      mod->fs[name] = f;
    }
    *m = (CUmodule)mod;
    return CUDA_SUCCESS;
  }
  std::string dir = cache_dir();
  mkdir(dir.c_str(), 0777);
  char hash[32];
  snprintf(hash, 32, "%016llx", (unsigned long long)fnv(s, n));
  std::string base = dir + "/" + hash, so = base + ".so";
  if (access(so.c_str(), R_OK)) {
    std::string tmp = base + "." + std::to_string(getpid());
    FILE* f = fopen((tmp + ".ptx").c_str(), "w");
    fwrite(s, 1, n, f);
    fclose(f);
    std::string here = own_folder(),
                python = getenv("EMU_PYTHON") ? getenv("EMU_PYTHON") : "python3";
    std::string cmd =
        "env -u LD_PRELOAD -u LD_LIBRARY_PATH -u CUDA_EMULATION " + quoted(python) + " " +
        quoted(here + "/ptx_to_cpp.py") + " " + quoted(tmp + ".ptx") + " " + quoted(tmp + ".cpp") +
        " && env -u LD_LIBRARY_PATH ${CXX:-g++} -O1 -fPIC -shared -w -std=c++17 -ffp-contract=off "
        "-fno-strict-aliasing -mf16c -mfma -I" +
        quoted(here) + " " + quoted(tmp + ".cpp") + " -o " + quoted(tmp + ".so") + " -L" +
        quoted(here + "/lib") + " -lfakecuda" + " && mv " + quoted(tmp + ".ptx") + " " +
        quoted(base + ".ptx") + " && mv " + quoted(tmp + ".cpp") + " " + quoted(base + ".cpp") +
        " && mv " + quoted(tmp + ".so") + " " + quoted(so);
    int rc = system(cmd.c_str());
    if (rc) {
      fprintf(stderr, "emu: cannot translate %s.ptx\n", tmp.c_str());
      return CUDA_ERROR_INVALID_PTX;
    }
  }
  mod->dl = dlopen(so.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!mod->dl) {
    fprintf(stderr, "emu: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  auto* e = (const EmuEntry*)dlsym(mod->dl, "emu_entries");
  unsigned sh = *(const unsigned*)dlsym(mod->dl, "emu_shared");
  mod->globals = (const EmuGlobal*)dlsym(mod->dl, "emu_globals");
  for (; e->name; ++e) mod->fs[e->name] = new Function{e, sh, e->name};
  *m = (CUmodule)mod;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* m, const char* file) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  auto* mod = (Module*)m;
  auto it = mod->fs.find(name);
  if (it == mod->fs.end()) return CUDA_ERROR_NOT_FOUND;
  *f = (CUfunction)it->second;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule m, const char* name) {
  auto* mod = (Module*)m;
  for (auto* g = mod->globals; g && g->name; ++g)
    if (!strcmp(g->name, name)) {
      *p = (CUdeviceptr)g->at;
      if (n) *n = g->size;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)(intptr_t)(g_device + 16);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) {
  *d = g_device;
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate_v2(CUcontext* c, unsigned, CUdevice) {
  *c = (CUcontext)16;
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int, size_t) {
  *n = 2;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* g, int* b, CUfunction, CUoccupancyB2DSize, size_t,
                                          int) {
  *g = 264;
  *b = 256;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* c) {
  *c = (CUcontext)(intptr_t)(g_device + 16);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** s) {
  *s = "CUDA_ERROR_EMULATED";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** s) {
  *s = "emulated driver error";
  return CUDA_SUCCESS;
}
}
static std::mutex g_run;
static CUresult run_blocks(Node& n);
static CUresult run_kernel(Node& n) {
  ++emu_launches;
  Function* fn = (Function*)n.f;
  std::lock_guard<std::mutex> l(g_run);
  unsigned long long loaded = emu_bytes_loaded, stored = emu_bytes_stored;
  CUresult r = counting() ? CUDA_SUCCESS : run_blocks(n);
  logf_("launch %s grid=%u,%u,%u block=%u,%u,%u shared=%u loaded=%llu stored=%llu\n",
        fn->name.c_str(), n.g[0], n.g[1], n.g[2], n.b[0], n.b[1], n.b[2], n.shared,
        emu_bytes_loaded - loaded, emu_bytes_stored - stored);
  return r;
}
static CUresult run_blocks(Node& n) {
  Function* fn = (Function*)n.f;
  const EmuEntry* e = fn->e;
  unsigned total = (fn->shared + 15) / 16 * 16 + n.shared;
  if (total > 232448 || n.b[0] * n.b[1] * n.b[2] > 1024 || n.b[2] > 64 || n.g[1] > 65535 ||
      n.g[2] > 65535)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> shared(total + 64);
  char* sh = (char*)(((uintptr_t)shared.data() + 15) / 16 * 16);
  int count = n.b[0] * n.b[1] * n.b[2];
  Thr base{};
  for (int i = 0; i < 3; ++i) {
    base.ntid[i] = n.b[i];
    base.nctaid[i] = n.g[i];
  }
  base.params = n.params.data();
  base.shared = sh;
  base.shared_total = total;
  base.dyn = n.shared;
  for (unsigned z = 0; z < n.g[2]; ++z)
    for (unsigned y = 0; y < n.g[1]; ++y)
      for (unsigned x = 0; x < n.g[0]; ++x) {
        base.ctaid[0] = x;
        base.ctaid[1] = y;
        base.ctaid[2] = z;
        memset(sh, 0xE5, total);
        if (!e->sync) {
          for (int k = 0; k < count; ++k) {
            Thr t = base;
            t.lin = k;
            t.tid[0] = k % n.b[0];
            t.tid[1] = k / n.b[0] % n.b[1];
            t.tid[2] = k / n.b[0] / n.b[1];
            e->run(&t);
          }
          continue;
        }
        if ((int)g_fibers.size() < count) {
          size_t old = g_fibers.size();
          g_fibers.resize(1024);
          for (size_t i = old; i < 1024; ++i)
            g_fibers[i].stack = (char*)mmap(0, STACK, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        }
        static Block b;
        b.fibers = &g_fibers;
        b.count = b.live = count;
        b.waiting = 0;
        b.gen = 0;
        b.red[0] = 0;
        b.red[1] = 1;
        b.red[2] = 0;
        b.run = e->run;
        g_block = &b;
        for (int w = 0; w < (count + 31) / 32; ++w) {
          Warp& W = b.warps[w];
          memset(&W, 0, sizeof W);
          int m = std::min(32, count - 32 * w);
          W.alive = m == 32 ? ~0u : (1u << m) - 1;
        }
        for (int k = 0; k < count; ++k) {
          Fiber& f = g_fibers[k];
          f.thr = base;
          f.thr.lin = k;
          f.thr.tid[0] = k % n.b[0];
          f.thr.tid[1] = k / n.b[0] % n.b[1];
          f.thr.tid[2] = k / n.b[0] / n.b[1];
          f.thr.warp = &b.warps[k / 32];
          f.thr.fiber = &f;
          f.done = false;
          void** top = (void**)(f.stack + STACK);
          top = (void**)((uintptr_t)top & ~(uintptr_t)63);
          *--top = 0;
          *--top = (void*)fiber_main;
          for (int r = 0; r < 6; ++r) *--top = 0;
          f.sp = top;
        }
        long idle = 0;
        while (b.live) {
          int before = b.live;
          uint64_t gen = b.gen;
          uint64_t wg = 0;
          for (int w = 0; w < (count + 31) / 32; ++w)
            for (int i = 0; i < 32; ++i) wg += b.warps[w].gen[i];
          for (int k = 0; k < count; ++k) {
            Fiber& f = g_fibers[k];
            if (f.done) continue;
            b.current = &f;
            emu_switch(&b.main_sp, f.sp);
          }
          uint64_t wg2 = 0;
          for (int w = 0; w < (count + 31) / 32; ++w)
            for (int i = 0; i < 32; ++i) wg2 += b.warps[w].gen[i];
          if (b.live == before && b.gen == gen && wg == wg2) {
            if (++idle > 1000) {
              fprintf(stderr, "emu: DEADLOCK in %s block %u\n", fn->name.c_str(), x);
              abort();
            }
          } else
            idle = 0;
        }
      }
  return CUDA_SUCCESS;
}
extern "C" CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream s,
                                   void** params, void**) {
  Node n;
  n.kind = 0;
  n.f = f;
  n.g[0] = gx;
  n.g[1] = gy;
  n.g[2] = gz;
  n.b[0] = bx;
  n.b[1] = by;
  n.b[2] = bz;
  n.shared = shared;
  Function* fn = (Function*)f;
  if (fn->e) {
    unsigned end = 0;
    for (unsigned i = 0; i < fn->e->num_params; ++i)
      end = std::max(end, fn->e->params[i].offset + fn->e->params[i].size);
    n.params.assign(end + 16, 0);
    for (unsigned i = 0; i < fn->e->num_params; ++i)
      memcpy(n.params.data() + fn->e->params[i].offset, params[i], fn->e->params[i].size);
  }
  if (capturing(s)) {
    stream_of(s)->nodes.push_back(std::move(n));
    return CUDA_SUCCESS;
  }
  return run_kernel(n);
}
extern "C" CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                              unsigned bx, unsigned by, unsigned bz,
                                              unsigned shared, CUstream s, void** params) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
extern "C" cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w,
                                         size_t h, cudaMemcpyKind k, cudaStream_t st) {
  for (size_t i = 0; i < h; ++i) copy((char*)d + i * dp, (const char*)s + i * sp, w, k, st, true);
  OK;
}
extern "C" cudaError_t cudaMemcpy2D(void* d, size_t dp, const void* s, size_t sp, size_t w,
                                    size_t h, cudaMemcpyKind k) {
  for (size_t i = 0; i < h; ++i) copy((char*)d + i * dp, (const char*)s + i * sp, w, k, 0, false);
  OK;
}

// ---- cuBLAS -------------------------------------------------------------------------------------
using emu::load;
using emu::store;
// a: ta, tb, m, n, k, A, at, lda, sa, B, bt, ldb, sb, C, ct, ldc, sc, batch   (column-major)
static void run_gemm(const std::vector<long long>& a, const std::vector<double>& ab) {
  ++emu_gemms;
  long long ta = a[0], tb = a[1], m = a[2], n = a[3], k = a[4];
  int at = a[6], bt = a[10], ct = a[14];
  long long lda = a[7], ldb = a[11], ldc = a[15];
  logf_("gemm %s m=%lld n=%lld k=%lld ta=%lld tb=%lld batch=%lld\n", emu::name(at), m, n, k, ta,
        tb, a[17]);
  emu_bytes_gemm +=
      a[17] * (m * k * emu::width(at) + k * n * emu::width(bt) + m * n * emu::width(ct));
  if (counting()) return;
  if (at > 14 || at == 4) {
    fprintf(stderr, "emu: complex gemm not emulated\n");
    abort();
  }
  if (lda < std::max(1LL, ta ? k : m) || ldb < std::max(1LL, tb ? n : k) ||
      ldc < std::max(1LL, m)) {
    fprintf(stderr,
            "emu: gemm: bad leading dim %lld %lld %lld for m=%lld n=%lld k=%lld ta=%lld tb=%lld\n",
            lda, ldb, ldc, m, n, k, ta, tb);
    abort();
  }
  for (long long q = 0; q < a[17]; ++q) {
    bool at_addresses = a[16] < 0;
    const void* A = at_addresses ? ((const void**)a[5])[q] : (const void*)a[5];
    const void* B = at_addresses ? ((const void**)a[9])[q] : (const void*)a[9];
    void* C = at_addresses ? ((void**)a[13])[q] : (void*)a[13];
    long long oa = 0, ob = 0, oc = 0;
    if (!at_addresses) oa = q * a[8], ob = q * a[12], oc = q * a[16];
    std::vector<double> x(m * k), y(k * n);
    for (long long i = 0; i < m; ++i)
      for (long long l = 0; l < k; ++l)
        x[i * k + l] = load(A, oa + (ta ? l + i * lda : i + l * lda), at);
    for (long long j = 0; j < n; ++j)
      for (long long l = 0; l < k; ++l)
        y[j * k + l] = load(B, ob + (tb ? j + l * ldb : l + j * ldb), bt);
    for (long long j = 0; j < n; ++j)
      for (long long i = 0; i < m; ++i) {
        double s = 0;
        const double *p = &x[i * k], *r = &y[j * k];
        for (long long l = 0; l < k; ++l) s += p[l] * r[l];
        double old = ab[1] != 0 ? load(C, oc + i + j * ldc, ct) * ab[1] : 0;
        store(C, oc + i + j * ldc, ct, ab[0] * s + old);
      }
  }
}
void emu::multiply(void* stream, std::function<void()> product) {
  if (!capturing(stream)) return product();
  Node n;
  n.kind = 3;
  n.product = product;
  stream_of(stream)->nodes.push_back(n);
}
static void* g_blas_stream = 0;
static int gemm(std::vector<long long> a, double alpha, double beta) {
  emu::multiply(g_blas_stream, [=] { run_gemm(a, {alpha, beta}); });
  return 0;
}
static bool computes(const char* name, int type) {
  if ((type >= 68 && type <= 71) || type == 74 || type == 77) return true;
  fprintf(stderr, "emu: %s compute type %d\n", name, type);
  return false;
}
static double scalar(const void* p, int compute) {
  return (compute == 1 || compute == 70 || compute == 71) ? *(const double*)p
                                                          : (double)*(const float*)p;
}
extern "C" {
int cublasCreate_v2(void** h) {
  *h = (void*)0x77;
  return 0;
}
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void* s) {
  g_blas_stream = s;
  return 0;
}
int cublasGetStream_v2(void*, void** s) {
  *s = g_blas_stream;
  return 0;
}
int cublasSetMathMode(void*, int) { return 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
int cublasGetMathMode(void*, int* m) {
  *m = 0;
  return 0;
}
int cublasSetPointerMode_v2(void*, int) { return 0; }
int cublasGetPointerMode_v2(void*, int* m) {
  *m = 0;
  return 0;
}
int cublasGetVersion_v2(void*, int* v) {
  *v = 130000;
  return 0;
}
int cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* al, const void* A, int at,
                 int lda, const void* B, int bt, int ldb, const void* be, void* C, int ct, int ldc,
                 int compute, int algo) {
  if (!computes("gemmEx", compute)) return 7;
  return gemm({ta, tb, m, n, k, (long long)A, at, lda, 0, (long long)B, bt, ldb, 0, (long long)C,
               ct, ldc, 0, 1},
              scalar(al, compute), scalar(be, compute));
}
int cublasGemmStridedBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* al,
                               const void* A, int at, int lda, long long sa, const void* B, int bt,
                               int ldb, long long sb, const void* be, void* C, int ct, int ldc,
                               long long sc, int batch, int compute, int algo) {
  if (!computes("gemmStridedBatchedEx", compute)) return 7;
  return gemm({ta, tb, m, n, k, (long long)A, at, lda, sa, (long long)B, bt, ldb, sb, (long long)C,
               ct, ldc, sc, batch},
              scalar(al, compute), scalar(be, compute));
}
// stride -1: the operands are arrays of addresses.
int cublasGemmBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* al,
                        const void* const A[], int at, int lda, const void* const B[], int bt,
                        int ldb, const void* be, void* const C[], int ct, int ldc, int batch,
                        int compute, int algo) {
  if (!computes("gemmBatchedEx", compute)) return 7;
  return gemm({ta, tb, m, n, k, (long long)A, at, lda, -1, (long long)B, bt, ldb, -1, (long long)C,
               ct, ldc, -1, batch},
              scalar(al, compute), scalar(be, compute));
}
int cublasSgemmBatched(void*, int ta, int tb, int m, int n, int k, const float* al, const float** A,
                       int lda, const float** B, int ldb, const float* be, float** C, int ldc,
                       int batch) {
  for (int q = 0; q < batch; ++q) {
    if (counting()) {
      gemm({ta, tb, m, n, k, 0, 0, lda, 0, 0, 0, ldb, 0, 0, 0, ldc, 0, batch}, *al, *be);
      break;
    }
    gemm({ta, tb, m, n, k, (long long)A[q], 0, lda, 0, (long long)B[q], 0, ldb, 0, (long long)C[q],
          0, ldc, 0, 1},
         *al, *be);
  }
  return 0;
}
int cublasDgemmBatched(void*, int ta, int tb, int m, int n, int k, const double* al,
                       const double** A, int lda, const double** B, int ldb, const double* be,
                       double** C, int ldc, int batch) {
  for (int q = 0; q < batch; ++q)
    gemm({ta, tb, m, n, k, (long long)A[q], 1, lda, 0, (long long)B[q], 1, ldb, 0, (long long)C[q],
          1, ldc, 0, 1},
         *al, *be);
  return 0;
}
}

// LU with partial pivoting, solutions and inverses from it, each matrix column by column (as cuBLAS and
// LAPACK have them), a batch of matrices at the addresses in `as`.
template <class T>
static int factor(int n, T* const* as, int lda, int* pivots, int* info, int batch) {
  if (counting()) return 0;
  for (int k = 0; k < batch; ++k) {
    T* a = as[k];
    info[k] = 0;
    for (int j = 0; j < n; ++j) {
      int best = j;
      for (int i = j + 1; i < n; ++i)
        if (std::fabs(a[i + (size_t)j * lda]) > std::fabs(a[best + (size_t)j * lda])) best = i;
      pivots[k * n + j] = best + 1;
      for (int c = 0; c < n && best != j; ++c)
        std::swap(a[j + (size_t)c * lda], a[best + (size_t)c * lda]);
      if (a[j + (size_t)j * lda] == 0) {
        if (!info[k]) info[k] = j + 1;
        continue;
      }
      for (int i = j + 1; i < n; ++i) {
        T f = a[i + (size_t)j * lda] /= a[j + (size_t)j * lda];
        for (int c = j + 1; c < n; ++c) a[i + (size_t)c * lda] -= f * a[j + (size_t)c * lda];
      }
    }
  }
  return 0;
}
// x <- the solution of (rows exchanged) L U x, or of its transpose, for one right side.
template <class T>
static void solve(int n, const T* a, int lda, const int* pivots, bool transposed, T* x) {
  for (int j = 0; j < n && !transposed; ++j) std::swap(x[j], x[pivots[j] - 1]);
  for (int j = 0; j < n; ++j) {  // L, or the transpose of U
    if (transposed) x[j] /= a[j + (size_t)j * lda];
    for (int i = j + 1; i < n; ++i)
      x[i] -= (transposed ? a[j + (size_t)i * lda] : a[i + (size_t)j * lda]) * x[j];
  }
  for (int j = n - 1; j >= 0; --j) {  // U, or the transpose of L
    if (!transposed) x[j] /= a[j + (size_t)j * lda];
    for (int i = 0; i < j; ++i)
      x[i] -= (transposed ? a[j + (size_t)i * lda] : a[i + (size_t)j * lda]) * x[j];
  }
  for (int j = n - 1; j >= 0 && transposed; --j) std::swap(x[j], x[pivots[j] - 1]);
}
template <class T>
static int solve_all(int transposed, int n, int sides, const T* const* as, int lda,
                     const int* pivots, T* const* bs, int ldb, int* info, int batch) {
  *info = 0;
  if (counting()) return 0;
  for (int k = 0; k < batch; ++k)
    for (int c = 0; c < sides; ++c)
      solve(n, as[k], lda, pivots + (size_t)k * n, transposed != 0, bs[k] + (size_t)c * ldb);
  return 0;
}
template <class T>
static int invert(int n, const T* const* as, int lda, const int* pivots, T* const* cs, int ldc,
                  int* info, int batch) {
  if (counting()) return 0;
  for (int k = 0; k < batch; ++k) {
    info[k] = 0;
    for (int c = 0; c < n; ++c) {
      std::vector<T> x(n, 0);
      x[c] = 1;
      solve(n, as[k], lda, pivots + (size_t)k * n, false, x.data());
      std::copy(x.begin(), x.end(), cs[k] + (size_t)c * ldc);
    }
  }
  return 0;
}
#define LU(letter, T)                                                                              \
  extern "C" int cublas##letter##getrfBatched(void*, int n, T* const* as, int lda, int* pivots,    \
                                              int* info, int batch) {                              \
    return factor<T>(n, as, lda, pivots, info, batch);                                             \
  }                                                                                                \
  extern "C" int cublas##letter##getriBatched(void*, int n, const T* const* as, int lda,           \
                                              const int* pivots, T* const* cs, int ldc, int* info, \
                                              int batch) {                                         \
    return invert<T>(n, as, lda, pivots, cs, ldc, info, batch);                                    \
  }
#define SOLVE(letter, T)                                                                      \
  extern "C" int cublas##letter##getrsBatched(void*, int transposed, int n, int sides,        \
                                              const T* const* as, int lda, const int* pivots, \
                                              T* const* bs, int ldb, int* info, int batch) {  \
    return solve_all<T>(transposed, n, sides, as, lda, pivots, bs, ldb, info, batch);         \
  }
SOLVE(S, float)
SOLVE(D, double)
LU(S, float)
LU(D, double)
