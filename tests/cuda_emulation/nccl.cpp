// NCCL between processes of one host whose "device" memory is host memory: each call meets in
// shared memory and reads peers' buffers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cstdint>
#include <vector>
#include <atomic>
#include <string>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include "emu.h"
typedef int R;
__attribute__((constructor)) static void let_ranks_in() {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}
struct Id {
  char internal[128];
};
struct Slot {
  std::atomic<uint64_t> seq;
  std::atomic<uint64_t> sig;
  std::atomic<int> pid;
  std::atomic<int> pad;
  uint64_t ptr;
  uint64_t n;
  int num_ops;
  struct {
    int peer;
    uint64_t ptr, nbytes;
  } ops[64];
  std::atomic<uint64_t> done1, done2;
};
struct Shared {
  std::atomic<int> joined;
  Slot slots[16];
};
struct Comm {
  Shared* s;
  int rank, n;
  uint64_t seq = 0;
  std::atomic<bool> aborted{false};
};
struct Op {
  int kind;
  void* src;
  void* dst;
  uint64_t count;
  int type, op, root, peer;
  Comm* c;
};
static thread_local int depth = 0;
static thread_local std::vector<Op> queue;
static size_t size_of(int t) {
  static const size_t s[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return s[t];
}
static void pull(int pid, uint64_t from, void* to, uint64_t n) {
  if (pid == getpid()) {
    memmove(to, (void*)from, n);
    return;
  }
  uint64_t k = 0;
  while (k < n) {
    iovec l{(char*)to + k, n - k}, r{(void*)(from + k), n - k};
    ssize_t g = process_vm_readv(pid, &l, 1, &r, 1, 0);
    if (g <= 0) {
      perror("process_vm_readv");
      abort();
    }
    k += g;
  }
}
static bool wait_for(Comm* c, std::atomic<uint64_t> Slot::* field, uint64_t v) {
  for (int r = 0; r < c->n; ++r)
    while ((c->s->slots[r].*field).load() < v) {
      if (c->aborted) return false;
      timespec t{0, 50000};
      nanosleep(&t, 0);
    }
  return true;
}
static double get(const char* p, uint64_t i, int t) {
  switch (t) {
    case 0:
      return ((int8_t*)p)[i];
    case 1:
      return ((uint8_t*)p)[i];
    case 2:
      return ((int32_t*)p)[i];
    case 3:
      return ((uint32_t*)p)[i];
    case 4:
      return (double)((int64_t*)p)[i];
    case 6:
      return h2f(((uint16_t*)p)[i]);
    case 7:
      return ((float*)p)[i];
    case 8:
      return ((double*)p)[i];
    case 9:
      return b2f(((uint16_t*)p)[i]);
  }
  abort();
}
static void put(char* p, uint64_t i, int t, double v) {
  switch (t) {
    case 0:
      ((int8_t*)p)[i] = v;
      return;
    case 1:
      ((uint8_t*)p)[i] = v;
      return;
    case 2:
      ((int32_t*)p)[i] = v;
      return;
    case 3:
      ((uint32_t*)p)[i] = v;
      return;
    case 4:
      ((int64_t*)p)[i] = v;
      return;
    case 6:
      ((uint16_t*)p)[i] = f2h(v);
      return;
    case 7:
      ((float*)p)[i] = v;
      return;
    case 8:
      ((double*)p)[i] = v;
      return;
    case 9:
      ((uint16_t*)p)[i] = f2b(v);
      return;
  }
  abort();
}
static R run(Comm* c, std::vector<Op> ops) {
  // one meeting for a list of operations: all sends and receives together, each other call by
  // itself
  Slot& me = c->s->slots[c->rank];
  uint64_t s = ++c->seq;
  uint64_t sig = 7;
  bool p2p = ops[0].kind >= 10;
  if (!p2p) {
    Op& o = ops[0];
    sig = o.kind * 1000003ull + o.count * 31 + o.type * 7 + o.op;
  }
  me.num_ops = 0;
  me.pid = getpid();
  if (p2p) {
    for (auto& o : ops)
      if (o.kind == 10) {
        if (me.num_ops == 64) abort();
        me.ops[me.num_ops++] = {o.peer, (uint64_t)o.src, o.count * size_of(o.type)};
      }
  } else
    me.ptr = (uint64_t)ops[0].src;
  me.sig = sig;
  me.seq = s;
  if (!wait_for(c, &Slot::seq, s)) return 0;
  for (int r = 0; r < c->n; ++r)
    if (c->s->slots[r].sig != sig) {
      while (!c->aborted) {
        timespec t{0, 1000000};
        nanosleep(&t, 0);
      }
      return 0;
    }  // hangs, as NCCL does
  std::vector<std::pair<void*, std::vector<char>>> results;
  if (p2p) {
    std::vector<int> used(c->n, 0);
    for (auto& o : ops)
      if (o.kind == 11) {
        Slot& q = c->s->slots[o.peer];
        int k = 0, want = used[o.peer]++;
        int i = 0;
        for (; i < q.num_ops; ++i)
          if (q.ops[i].peer == c->rank && k++ == want) break;
        uint64_t n = o.count * size_of(o.type);
        if (i == q.num_ops || q.ops[i].nbytes != n) {
          fprintf(stderr, "emu: NCCL receive of %lu bytes from %d has no matching send\n",
                  (unsigned long)n, o.peer);
          abort();
        }
        std::vector<char> b(n);
        pull(q.pid, q.ops[i].ptr, b.data(), n);
        results.emplace_back(o.dst, std::move(b));
      }
  } else {
    Op& o = ops[0];
    size_t e = size_of(o.type);
    auto reduced = [&](uint64_t first, uint64_t n) {
      std::vector<char> out(n * e), b(n * e);
      for (int r = 0; r < c->n; ++r) {
        pull(c->s->slots[r].pid, c->s->slots[r].ptr + first * e, b.data(), n * e);
        for (uint64_t i = 0; i < n; ++i) {
          double v = get(b.data(), i, o.type);
          if (r) {
            double a = get(out.data(), i, o.type);
            v = o.op == 0   ? a + v
                : o.op == 1 ? a * v
                : o.op == 2 ? (a > v ? a : v)
                            : (a < v ? a : v);
          }
          put(out.data(), i, o.type, v);
        }
      }
      return out;
    };
    if (o.kind == 0)
      results.emplace_back(o.dst, reduced(0, o.count));
    else if (o.kind == 1)
      results.emplace_back(o.dst, reduced(o.count * c->rank, o.count));
    else if (o.kind == 2) {
      std::vector<char> b(o.count * e * c->n);
      for (int r = 0; r < c->n; ++r)
        pull(c->s->slots[r].pid, c->s->slots[r].ptr, b.data() + r * o.count * e, o.count * e);
      results.emplace_back(o.dst, std::move(b));
    } else if (o.kind == 3) {
      std::vector<char> b(o.count * e);
      pull(c->s->slots[o.root].pid, c->s->slots[o.root].ptr, b.data(), b.size());
      results.emplace_back(o.dst, std::move(b));
    }
  }
  me.done1 = s;
  if (!wait_for(c, &Slot::done1, s)) return 0;
  for (auto& x : results) memcpy(x.first, x.second.data(), x.second.size());
  return 0;
}
static R issue(Op o) {
  if (depth) {
    queue.push_back(o);
    return 0;
  }
  return run(o.c, {o});
}
extern "C" {
R ncclGetVersion(int* v) {
  *v = getenv("EMU_NCCL_VERSION") ? atoi(getenv("EMU_NCCL_VERSION")) : 23203;
  return 0;
}
R ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  snprintf(id->internal, 128, "/emunccl-%d-%ld", getpid(), t.tv_nsec);
  id->internal[127] = (char)0x93;
  return 0;
}
R ncclCommInitRank(Comm** c, int n, Id id, int rank) {
  int fd = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared))) return 2;
  auto* s = (Shared*)mmap(0, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ++s->joined;
  while (s->joined < n) {
    timespec t{0, 1000000};
    nanosleep(&t, 0);
  }
  shm_unlink(id.internal);
  auto* x = new Comm;
  x->s = s;
  x->rank = rank;
  x->n = n;
  *c = x;
  return 0;
}
R ncclCommInitRankConfig(Comm** c, int n, Id id, int rank, void*) {
  return ncclCommInitRank(c, n, id, rank);
}
R ncclCommInitAll(...) { return 3; }
R ncclCommSplit(...) { return 3; }
R ncclCommFinalize(Comm*) { return 0; }
R ncclCommDestroy(Comm*) { return 0; }
R ncclCommAbort(Comm* c) {
  c->aborted = true;
  return 0;
}
R ncclCommCount(Comm* c, int* n) {
  *n = c->n;
  return 0;
}
R ncclCommCuDevice(Comm*, int* d) {
  *d = 0;
  return 0;
}
R ncclCommUserRank(Comm* c, int* r) {
  *r = c->rank;
  return 0;
}
R ncclCommGetAsyncError(Comm*, R* e) {
  *e = 0;
  return 0;
}
const char* ncclGetErrorString(R) { return "emulated NCCL error"; }
R ncclAllReduce(void* s, void* d, size_t n, int t, int op, Comm* c, void*) {
  return issue({0, s, d, n, t, op, 0, 0, c});
}
R ncclReduceScatter(void* s, void* d, size_t n, int t, int op, Comm* c, void*) {
  return issue({1, s, d, n, t, op, 0, 0, c});
}
R ncclAllGather(void* s, void* d, size_t n, int t, Comm* c, void*) {
  return issue({2, s, d, n, t, 0, 0, 0, c});
}
R ncclBroadcast(void* s, void* d, size_t n, int t, int root, Comm* c, void*) {
  return issue({3, s, d, n, t, 0, root, 0, c});
}
R ncclBcast(void* b, size_t n, int t, int root, Comm* c, void*) {
  return issue({3, b, b, n, t, 0, root, 0, c});
}
R ncclReduce(...) { return 3; }
R ncclSend(void* s, size_t n, int t, int peer, Comm* c, void*) {
  return issue({10, s, 0, n, t, 0, 0, peer, c});
}
R ncclRecv(void* d, size_t n, int t, int peer, Comm* c, void*) {
  return issue({11, 0, d, n, t, 0, 0, peer, c});
}
R ncclGroupStart() {
  ++depth;
  return 0;
}
R ncclGroupEnd() {
  if (--depth) return 0;
  auto q = std::move(queue);
  queue.clear();
  std::vector<Op> p2p;
  for (auto& o : q) {
    if (o.kind >= 10)
      p2p.push_back(o);
    else if (R r = run(o.c, {o}))
      return r;
  }
  return p2p.empty() ? 0 : run(p2p[0].c, p2p);
}
}
