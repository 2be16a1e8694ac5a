// cuBLASLt: products with what they do to their result as they write it. Checked as strictly as its
// documentation asks: sizes of attributes, leading dimensions, alignment, what each type may do.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
#include "emu.h"
#include "products.h"

namespace emu {
static const int F32 = 0, F64 = 1, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29;

const char* name(int type) {
  static const std::map<int, const char*> names = {{F32, "f32"},   {F64, "f64"},   {F16, "f16"},
                                                   {BF16, "bf16"}, {E4M3, "e4m3"}, {E5M2, "e5m2"}};
  auto it = names.find(type);
  return it == names.end() ? "?" : it->second;
}
long long width(int type) {
  switch (type) {
    case F32:
      return 4;
    case F64:
      return 8;
    case F16:
    case BF16:
      return 2;
    case E4M3:
    case E5M2:
      return 1;
  }
  return type == 4 ? 8 : type == 5 ? 16 : 0;  // complex numbers are counted, never computed
}
// Eight bits with `mantissa` of them behind the point; e4m3 has no infinity and one NaN.
static double eight(uint8_t bits, int mantissa) {
  int exponent_bits = 7 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = (bits & 0x7f) >> mantissa, part = bits & ((1 << mantissa) - 1);
  double sign = bits & 0x80 ? -1 : 1;
  bool top = exponent == (1 << exponent_bits) - 1;
  if (mantissa == 3 && top && part == 7) return NAN;
  if (mantissa == 2 && top) return part ? NAN : sign * INFINITY;
  if (!exponent) return sign * ldexp(part, 1 - bias - mantissa);
  return sign * ldexp(part + (1 << mantissa), exponent - bias - mantissa);
}
static uint8_t to_eight(double value, int mantissa) {
  if (std::isnan(value)) return 0x7f;
  int best = 0;
  double nearest = INFINITY, size = fabs(value);
  for (int bits = 0; bits < 0x7f; ++bits) {
    double x = eight(bits, mantissa);
    if (!std::isfinite(x)) continue;  // results too large become the largest number
    double apart = fabs(x - size);
    if (apart < nearest || (apart == nearest && bits % 2 == 0)) nearest = apart, best = bits;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}
double load(const void* p, long long i, int type) {
  switch (type) {
    case F32:
      return ((const float*)p)[i];
    case F64:
      return ((const double*)p)[i];
    case F16:
      return h2f(((const uint16_t*)p)[i]);
    case BF16:
      return b2f(((const uint16_t*)p)[i]);
    case E4M3:
      return eight(((const uint8_t*)p)[i], 3);
    case E5M2:
      return eight(((const uint8_t*)p)[i], 2);
  }
  fprintf(stderr, "emu: product of type %d\n", type);
  abort();
}
void store(void* p, long long i, int type, double v) {
  switch (type) {
    case F32:
      ((float*)p)[i] = (float)v;
      return;
    case F64:
      ((double*)p)[i] = v;
      return;
    case F16:
      ((uint16_t*)p)[i] = f2h((float)v);
      return;
    case BF16:
      ((uint16_t*)p)[i] = f2b((float)v);
      return;
    case E4M3:
      ((uint8_t*)p)[i] = to_eight(v, 3);
      return;
    case E5M2:
      ((uint8_t*)p)[i] = to_eight(v, 2);
      return;
  }
  abort();
}
}  // namespace emu

namespace {
enum { OK = 0, NOT_INITIALIZED = 1, INVALID = 7, NOT_SUPPORTED = 15 };
// Bits of an epilogue, as cublasLtEpilogue_t is made of them.
enum { RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, GELU = 32, DGELU = 64, AUX = 128, SUM_A = 256, SUM_B = 512 };
const long long MAGIC = 0x6c74;

struct Desc {
  long long magic = MAGIC;
  int compute = 0, scale = 0, ta = 0, tb = 0, bias_type = -1, aux_type = -1;
  unsigned epilogue = 1;
  int8_t fast = 0;
  void *bias = 0, *aux = 0, *scale_a = 0, *scale_b = 0, *scale_c = 0, *scale_d = 0, *amax = 0;
  long long aux_ld = 0;
};
struct Layout {
  int type;
  long long rows, columns, ld, stride = 0;
  int batch = 1;
};
struct Algo {
  unsigned long long data[8];
};
struct Result {
  Algo algo;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
struct Preference {
  size_t workspace = 0;
  unsigned alignment[4] = {256, 256, 256, 256};
};

int set(void* target, size_t wanted, const void* value, size_t size) {
  if (size != wanted || !value) return INVALID;
  memcpy(target, value, size);
  return OK;
}
bool is_eight(int type) { return type == emu::E4M3 || type == emu::E5M2; }

// The reason why there is no algorithm; null if there is one.
const char* refusal(const Desc& d, const Layout& a, const Layout& b, const Layout& c,
                    const Layout& out) {
  long long m = d.ta ? a.columns : a.rows, k = d.ta ? a.rows : a.columns;
  long long n = d.tb ? b.rows : b.columns, kb = d.tb ? b.columns : b.rows;
  if (k != kb || out.rows != m || out.columns != n || c.rows != m || c.columns != n)
    return "sizes that do not fit";
  for (const Layout* x : {&a, &b, &c, &out})
    if (x->ld < x->rows) return "a leading dimension below the number of rows";
  if (a.batch != b.batch || a.batch != out.batch || c.batch != out.batch) return "stacks of different sizes";
  unsigned e = d.epilogue & ~1u;
  if (is_eight(a.type) || is_eight(b.type)) {
    if (!is_eight(a.type) || !is_eight(b.type)) return "eight bits times more";
    if (a.type == emu::E5M2 && b.type == emu::E5M2) return "e5m2 times e5m2";
    if (!d.ta || d.tb) return "eight bits that are not turned and plain";
    for (long long x : {m, n, k, a.ld, b.ld})
      if (x % 16) return "eight bits in sizes that are no multiples of 16";
    if (e & (SUM_A | SUM_B | RELU | DRELU)) return "that epilogue in eight bits";
    if (is_eight(out.type) ? is_eight(c.type) : c.type != out.type) return "that C in eight bits";
  } else {
    if (a.type != b.type || c.type != out.type) return "operands of two types";
    if (a.type != out.type && !(emu::width(a.type) == 2 && out.type == emu::F32)) return "that result";
    if (d.scale_a || d.scale_b || d.scale_c || d.scale_d || d.amax) return "scales of wide numbers";
  }
  if (a.type == emu::F64 ? d.compute != 70 : d.compute != 68 && d.compute != 77) return "that arithmetic";
  if (d.compute == 77 && a.type != emu::F32) return "TF32 of other numbers";
  if (a.type == emu::F64 && e) return "an epilogue in float64";
  if ((e & (BIAS | BGRAD | SUM_A | SUM_B)) && (uintptr_t)d.bias % emu::width(out.type)) return "a bias that is not aligned";
  if (e & AUX) {
    bool bits = e & (RELU | DRELU);
    if (d.aux_ld < m || d.aux_ld % (bits ? 128 : 8)) return "that leading dimension of the other matrix";
    if ((uintptr_t)d.aux % 16) return "another matrix that is not aligned";
  }
  if (out.batch > 1 && (e & ~(BIAS | RELU | GELU))) return "that epilogue of a stack";
  return nullptr;
}

double gelu(double x) { return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
double scale(const void* p) { return p ? (double)*(const float*)p : 1; }

struct Product {
  Desc d;
  double alpha, beta;
  Layout la, lb, lc, lout;
  const void *a, *b, *c;
  void* out;

  void run() const {
    ++emu_gemms;
    long long m = lout.rows, n = lout.columns, k = d.ta ? la.rows : la.columns;
    unsigned e = d.epilogue & ~1u;
    int bias_type = d.bias_type >= 0 ? d.bias_type : is_eight(lout.type) ? lc.type : lout.type;
    int aux_type = d.aux_type >= 0 ? d.aux_type : lout.type;
    long long bytes = m * k * emu::width(la.type) + k * n * emu::width(lb.type) + m * n * emu::width(lout.type);
    if (beta != 0) bytes += m * n * emu::width(lc.type);
    if (e & AUX) bytes += e & (RELU | DRELU) ? m * n / 8 : m * n * emu::width(aux_type);
    if (e & (BIAS | BGRAD | SUM_A)) bytes += m * emu::width(bias_type);
    if (e & SUM_B) bytes += n * emu::width(bias_type);
    emu_bytes_gemm += bytes * lout.batch;
    emu::log("gemm %s m=%lld n=%lld k=%lld ta=%d tb=%d batch=%d epilogue=%u beta=%g\n", emu::name(la.type), m, n, k,
             d.ta, d.tb, lout.batch, d.epilogue, beta);
    if (emu::counting()) return;
    for (int q = 0; q < lout.batch; ++q) one(q, m, n, k, e, bias_type, aux_type);
  }
  void one(int q, long long m, long long n, long long k, unsigned e, int bias_type, int aux_type) const {
    double factor = alpha * scale(d.scale_a) * scale(d.scale_b), amax = 0;
    std::vector<double> x(m * k), y(n * k), sums(e & SUM_B ? n : m, 0.0);
    for (long long i = 0; i < m; ++i)
      for (long long l = 0; l < k; ++l)
        x[i * k + l] = emu::load(a, q * la.stride + (d.ta ? l + i * la.ld : i + l * la.ld), la.type);
    for (long long j = 0; j < n; ++j)
      for (long long l = 0; l < k; ++l)
        y[j * k + l] = emu::load(b, q * lb.stride + (d.tb ? j + l * lb.ld : l + j * lb.ld), lb.type);
    for (long long j = 0; j < n; ++j)
      for (long long i = 0; i < m; ++i) {
        double s = 0;
        for (long long l = 0; l < k; ++l) s += x[i * k + l] * y[j * k + l];
        s *= factor;
        if (beta != 0) s += beta * scale(d.scale_c) * emu::load(c, q * lc.stride + i + j * lc.ld, lc.type);
        if (e & BIAS) s += emu::load(d.bias, i, bias_type);
        long long at = i + j * d.aux_ld;
        if (e & GELU) {
          if (e & AUX) emu::store(d.aux, at, aux_type, s);
          s = gelu(s);
        } else if (e & RELU) {
          if (e & AUX) {
            uint8_t& cell = ((uint8_t*)d.aux)[at / 8];
            cell = s > 0 ? cell | 1 << at % 8 : cell & ~(1 << at % 8);
          }
          s = s > 0 ? s : 0;
        } else if (e & DGELU) {
          s *= gelu_slope(emu::load(d.aux, at, aux_type));
        } else if (e & DRELU) {
          if (!(((const uint8_t*)d.aux)[at / 8] >> at % 8 & 1)) s = 0;
        }
        if (e & BGRAD) sums[i] += s;
        amax = std::max(amax, fabs(s));
        if (is_eight(lout.type)) s *= scale(d.scale_d);
        emu::store(out, q * lout.stride + i + j * lout.ld, lout.type, s);
      }
    if (e & SUM_A)
      for (long long i = 0; i < m; ++i)
        for (long long l = 0; l < k; ++l) sums[i] += x[i * k + l];
    if (e & SUM_B)
      for (long long j = 0; j < n; ++j)
        for (long long l = 0; l < k; ++l) sums[j] += y[j * k + l];
    if (e & (BGRAD | SUM_A | SUM_B))
      for (size_t i = 0; i < sums.size(); ++i) emu::store(d.bias, i, bias_type, sums[i]);
    if (d.amax) *(float*)d.amax = (float)amax;
  }
};
}  // namespace

extern "C" {
int cublasLtCreate(void** handle) {
  *handle = (void*)0x78;
  return OK;
}
int cublasLtDestroy(void*) { return OK; }
size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  Desc* d = new Desc;
  d->compute = compute, d->scale = scale;
  *made = d;
  return OK;
}
int cublasLtMatmulDescDestroy(void* d) {
  delete (Desc*)d;
  return OK;
}
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t size) {
  Desc* d = (Desc*)desc;
  if (!d || d->magic != MAGIC) return INVALID;
  switch (attribute) {
    case 3:
      return set(&d->ta, 4, value, size);
    case 4:
      return set(&d->tb, 4, value, size);
    case 7:
      return set(&d->epilogue, 4, value, size);
    case 8:
      return set(&d->bias, 8, value, size);
    case 11:
      return set(&d->aux, 8, value, size);
    case 12:
      return set(&d->aux_ld, 8, value, size);
    case 17:
      return set(&d->scale_a, 8, value, size);
    case 18:
      return set(&d->scale_b, 8, value, size);
    case 19:
      return set(&d->scale_c, 8, value, size);
    case 20:
      return set(&d->scale_d, 8, value, size);
    case 21:
      return set(&d->amax, 8, value, size);
    case 22:
      return set(&d->aux_type, 4, value, size);
    case 25:
      return set(&d->fast, 1, value, size);
    case 26:
      return set(&d->bias_type, 4, value, size);
  }
  fprintf(stderr, "emu: cublasLtMatmulDescSetAttribute: attribute %d\n", attribute);
  return INVALID;
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  *made = new Layout{type, (long long)rows, (long long)columns, ld};
  return emu::width(type) ? OK : INVALID;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete (Layout*)layout;
  return OK;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t size) {
  Layout* x = (Layout*)layout;
  if (attribute == 5) return set(&x->batch, 4, value, size);
  if (attribute == 6) return set(&x->stride, 8, value, size);
  fprintf(stderr, "emu: cublasLtMatrixLayoutSetAttribute: attribute %d\n", attribute);
  return INVALID;
}
int cublasLtMatmulPreferenceCreate(void** made) {
  *made = new Preference;
  return OK;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete (Preference*)preference;
  return OK;
}
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
  Preference* p = (Preference*)preference;
  if (attribute == 1) return set(&p->workspace, 8, value, size);
  if (attribute >= 5 && attribute <= 8) return set(&p->alignment[attribute - 5], 4, value, size);
  fprintf(stderr, "emu: cublasLtMatmulPreferenceSetAttribute: attribute %d\n", attribute);
  return INVALID;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* out, void* preference,
                                   int wanted, Result* results, int* found) {
  *found = 0;
  if (!handle || !preference || wanted < 1) return INVALID;
  const char* reason = refusal(*(Desc*)desc, *(Layout*)a, *(Layout*)b, *(Layout*)c, *(Layout*)out);
  if (reason) {
    emu::log("no product with %s\n", reason);
    return NOT_SUPPORTED;
  }
  memset(results, 0, sizeof(Result));
  results->algo.data[0] = MAGIC;
  results->workspace = std::min<size_t>(((Preference*)preference)->workspace, 1 << 20);
  *found = 1;
  return OK;
}
int cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* la, const void* b, void* lb,
                   const void* beta, const void* c, void* lc, void* out, void* lout, const Algo* algo, void* workspace,
                   size_t size, void* stream) {
  Desc& d = *(Desc*)desc;
  const char* reason = refusal(d, *(Layout*)la, *(Layout*)lb, *(Layout*)lc, *(Layout*)lout);
  if (!reason && (!handle || !algo || algo->data[0] != (unsigned long long)MAGIC)) reason = "no algorithm of ours";
  if (!reason && (d.epilogue & (BIAS | BGRAD | SUM_A | SUM_B)) && !d.bias) reason = "no bias";
  if (!reason && (d.epilogue & AUX) && !d.aux) reason = "no other matrix";
  if (!reason && size < (1 << 20)) reason = "a workspace below the algorithm's";
  if (reason) {
    fprintf(stderr, "emu: cublasLtMatmul: %s\n", reason);
    return INVALID;
  }
  auto number = [&](const void* p) { return d.scale == 1 ? *(const double*)p : (double)*(const float*)p; };
  Product p{d,  number(alpha), number(beta), *(Layout*)la, *(Layout*)lb, *(Layout*)lc, *(Layout*)lout,
            a,  b,             c,            out};
  emu::multiply(stream, [=] { p.run(); });
  return OK;
}
}
