// What translated kernels need; the fibers live in cuda.cpp.
#pragma once
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <cstdio>
#include <cmath>
#include <type_traits>
struct Warp;
struct Thr {
  uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
  uint32_t lin, dyn;
  char* params;
  char* shared;
  unsigned shared_total;
  Warp* warp;
  void* block;
  void* fiber;
};
struct EmuParam {
  unsigned offset, size;
};
struct EmuEntry {
  const char* name;
  void (*run)(Thr*);
  unsigned num_params;
  const EmuParam* params;
  int sync;
};
struct EmuGlobal {
  const char* name;
  void* at;
  size_t size;
};
extern "C" const unsigned emu_shared;
extern "C" unsigned long long emu_bytes_loaded, emu_bytes_stored;
extern "C" {
void emu_bar(Thr*, uint32_t id, uint32_t n);
uint32_t emu_bar_red(Thr*, uint32_t id, bool p, int kind);
void emu_warp_sync(Thr*, uint32_t mask);
uint32_t emu_shfl(Thr*, int mode, uint32_t v, uint32_t b, uint32_t c, uint32_t mask, bool* p);
uint32_t emu_vote(Thr*, int kind, bool p, uint32_t mask);
uint32_t emu_match(Thr*, int all, uint64_t v, uint32_t mask, bool* p);
uint32_t emu_redux(Thr*, const char* kind, int is_signed, uint32_t v, uint32_t mask);
void emu_exit(Thr*);
void emu_trap(const char*);
void emu_vprintf(char* format, char* args);
uint64_t emu_clock();
}
static inline float asf(uint32_t v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
static inline double asd(uint64_t v) {
  double f;
  memcpy(&f, &v, 8);
  return f;
}
static inline uint32_t fbits(float f) {
  uint32_t v;
  memcpy(&v, &f, 4);
  return v;
}
static inline uint64_t dbits(double f) {
  uint64_t v;
  memcpy(&v, &f, 8);
  return v;
}
static inline float fz(float f) { return fabsf(f) < 1.17549435e-38f ? copysignf(0.f, f) : f; }
static inline double fz(double f) { return f; }
template <class F>
static inline F sat1(F x) {
  return std::isnan(x) ? F(0) : x < 0 ? F(0) : x > 1 ? F(1) : x;
}
static inline float b2f(uint16_t h) { return asf((uint32_t)h << 16); }
static inline uint16_t f2b(float f) {
  uint32_t u = fbits(f);
  if (std::isnan(f)) return 0x7fff;
  u += 0x7fff + ((u >> 16) & 1);
  return u >> 16;
}
static inline uint16_t f2b_rz(float f) { return std::isnan(f) ? 0x7fff : fbits(f) >> 16; }
static inline float h2f(uint16_t h) {
  _Float16 x;
  memcpy(&x, &h, 2);
  return (float)x;
}
static inline uint16_t f2h(float f) {
  if (std::isnan(f)) return 0x7fff;
  _Float16 x = (_Float16)f;
  uint16_t h;
  memcpy(&h, &x, 2);
  return h;
}
static inline uint16_t f2h_rz(float f) {
  uint16_t h = f2h(f);
  float g = h2f(h);
  if (fabsf(g) > fabsf(f)) h -= 1;
  return h;
}
static inline float d2near_f16(double d) {
  _Float16 x = (_Float16)d;
  return (float)x;
}
static inline float d2near_bf16(
    double d) {  // round to odd first, so that the second rounding is right
  float f = (float)d;
  if ((double)f != d && std::isfinite(f)) {
    uint32_t u = fbits(f);
    if (fabs((double)f) > fabs(d)) u -= 1;
    u |= 1;
    f = asf(u);
  }
  return f;
}
static inline float d2f_rz(double d) {
  float f = (float)d;
  if (fabs((double)f) > fabs(d)) f = nextafterf(f, 0.f);
  return f;
}
static inline float d2f_rm(double d) {
  float f = (float)d;
  if ((double)f > d) f = nextafterf(f, -INFINITY);
  return f;
}
static inline float d2f_rp(double d) {
  float f = (float)d;
  if ((double)f < d) f = nextafterf(f, INFINITY);
  return f;
}
template <class I>
static inline float i2f_rz(I v) {
  float f = (float)v;
  long double l = v;
  if (fabsl((long double)f) > fabsl(l)) f = nextafterf(f, 0.f);
  return f;
}
template <class I>
static inline float i2f_rm(I v) {
  float f = (float)v;
  if ((long double)f > (long double)v) f = nextafterf(f, -INFINITY);
  return f;
}
template <class I>
static inline float i2f_rp(I v) {
  float f = (float)v;
  if ((long double)f < (long double)v) f = nextafterf(f, INFINITY);
  return f;
}
static inline double emu_hi(double d) { return asd(dbits(d) & 0xffffffff00000000ull); }
template <class I>
static inline I emu_f2i(double d) {
  using L = long double;
  const L lo = (L)(std::is_signed<I>::value
                       ? (I)((typename std::make_unsigned<I>::type)1 << (sizeof(I) * 8 - 1))
                       : 0);
  const I hi = std::is_signed<I>::value
                   ? (I) ~((typename std::make_unsigned<I>::type)1 << (sizeof(I) * 8 - 1))
                   : (I) ~(I)0;
  if (std::isnan(d)) return sizeof(I) == 8 ? (I)(1ull << 63) : (I)0;
  if ((L)d <= lo) return (I)lo;
  if ((L)d >= (L)hi) return hi;
  return (I)d;
}
template <class D, class S>
static inline D emu_isat(S v) {
  __int128 x = v;
  __int128 lo = std::is_signed<D>::value ? -((__int128)1 << (sizeof(D) * 8 - 1)) : 0;
  __int128 hi = std::is_signed<D>::value ? ((__int128)1 << (sizeof(D) * 8 - 1)) - 1
                                         : ((__int128)1 << (sizeof(D) * 8)) - 1;
  return (D)(x < lo ? lo : x > hi ? hi : x);
}
static inline uint32_t satadd(int64_t v) {
  return (uint32_t)(int32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}
template <class I>
static inline I emu_div(I a, I b) {
  if (b == 0) return (I) ~(I)0;
  if (std::is_signed<I>::value && b == (I)-1)
    return (I)(0 - (typename std::make_unsigned<I>::type)a);
  return a / b;
}
template <class I>
static inline I emu_rem(I a, I b) {
  if (b == 0) return a;
  if (std::is_signed<I>::value && b == (I)-1) return 0;
  return a % b;
}
template <class F>
static inline F emu_min(F a, F b, int nan) {
  if (nan && (std::isnan(a) || std::isnan(b))) return (F)NAN;
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class F>
static inline F emu_max(F a, F b, int nan) {
  if (nan && (std::isnan(a) || std::isnan(b))) return (F)NAN;
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
template <class I>
static inline I emu_absdiff(I a, I b) {
  return a > b ? a - b : b - a;
}
static inline uint32_t emu_prmt(uint32_t a, uint32_t b, uint32_t c) {
  uint64_t v = ((uint64_t)b << 32) | a;
  uint32_t r = 0;
  for (int k = 0; k < 4; ++k) {
    uint32_t s = (c >> (4 * k)) & 15;
    uint8_t y = v >> (8 * (s & 7));
    if (s & 8) y = (y & 0x80) ? 0xff : 0;
    r |= (uint32_t)y << (8 * k);
  }
  return r;
}
static inline uint32_t emu_bfe32u(uint32_t a, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (!n || p > 31) return 0;
  uint64_t v = (uint64_t)a >> p;
  return n >= 32 ? (uint32_t)v : (uint32_t)(v & ((1ull << n) - 1));
}
static inline uint32_t emu_bfe32s(uint32_t a, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (!n) return 0;
  int64_t v = (int64_t)(int32_t)a >> (p > 31 ? 31 : p);
  if (n >= 32) return (uint32_t)v;
  uint32_t s = (p + n - 1 > 31) ? ((int32_t)a < 0) : ((v >> (n - 1)) & 1);
  uint32_t m = (uint32_t)((1ull << n) - 1);
  return s ? ((uint32_t)v | ~m) : ((uint32_t)v & m);
}
static inline uint64_t emu_bfe64u(uint64_t a, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (!n || p > 63) return 0;
  uint64_t v = a >> p;
  return n >= 64 ? v : v & ((1ull << n) - 1);
}
static inline uint64_t emu_bfe64s(uint64_t a, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (!n) return 0;
  int64_t v = (int64_t)a >> (p > 63 ? 63 : p);
  if (n >= 64) return v;
  return (uint64_t)(v << (64 - n) >> (64 - n));
}
static inline uint32_t emu_bfi32(uint32_t a, uint32_t b, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (p > 31 || !n) return b;
  uint32_t m = (n >= 32 ? ~0u : ((1u << n) - 1)) << p;
  return (b & ~m) | ((a << p) & m);
}
static inline uint64_t emu_bfi64(uint64_t a, uint64_t b, uint32_t p, uint32_t n) {
  p &= 255;
  n &= 255;
  if (p > 63 || !n) return b;
  uint64_t m = (n >= 64 ? ~0ull : ((1ull << n) - 1)) << p;
  return (b & ~m) | ((a << p) & m);
}
static inline uint32_t emu_brev32(uint32_t v) {
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= ((v >> i) & 1u) << (31 - i);
  return r;
}
static inline uint64_t emu_brev64(uint64_t v) {
  uint64_t r = 0;
  for (int i = 0; i < 64; ++i) r |= ((v >> i) & 1ull) << (63 - i);
  return r;
}
static inline uint32_t emu_lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t t) {
  uint32_t r = 0;
  for (int i = 0; i < 8; ++i)
    if (t >> i & 1) r |= ((i & 4) ? a : ~a) & ((i & 2) ? b : ~b) & ((i & 1) ? c : ~c);
  return r;
}
static inline bool emu_is_shared(Thr* t, char* p) {
  return p >= t->shared && p < t->shared + t->shared_total;
}
