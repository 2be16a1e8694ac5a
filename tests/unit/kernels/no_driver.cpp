// A CUDA driver and runtime of a machine without a GPU, as far as cuDNN asks them while it builds
// plans for a device that it was described: kernels that it compiles can be loaded, not launched.
// COMPUTE is the device's compute capability, 900 for 9.0; SIDE picks the library.

#include <cstring>

using Result = int;
constexpr Result DONE = 0, NO_DEVICE = 100;
static char something[4096];

#ifdef DRIVER
#define FAILS(name) extern "C" Result name() { return NO_DEVICE; }
#define WORKS(name) extern "C" Result name() { return DONE; }
#define GIVES(name) extern "C" Result name(void** made) { *made = something; return DONE; }
FAILS(cuCtxGetLimit) FAILS(cuDeviceGet) FAILS(cuDeviceGetCount) FAILS(cuGetErrorName)
FAILS(cuGetErrorString) FAILS(cuLaunchCooperativeKernel) FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx) FAILS(cuLibraryLoadFromFile) FAILS(cuLinkAddData) FAILS(cuLinkComplete)
FAILS(cuLinkCreate) FAILS(cuLinkDestroy) FAILS(cuModuleGetFunction) FAILS(cuModuleLoadData)
FAILS(cuModuleUnload) FAILS(cuStreamGetCtx) FAILS(cuTensorMapEncodeIm2col)
FAILS(cuTensorMapEncodeTiled)
WORKS(cuCtxPopCurrent) WORKS(cuCtxPushCurrent) WORKS(cuKernelGetAttribute)
WORKS(cuKernelSetAttribute) WORKS(cuLibraryUnload)
GIVES(cuCtxGetCurrent) GIVES(cuKernelGetFunction) GIVES(cuLibraryGetKernel)
GIVES(cuLibraryLoadData)
extern "C" Result cuDriverGetVersion(int* version) { *version = 12090; return DONE; }
extern "C" Result cuOccupancyMaxPotentialClusterSize(int* size) { *size = 8; return DONE; }
#else
constexpr int MAJOR = 75, MINOR = 76;       // numbers of attributes
constexpr int MAJOR_AT = 360, MINOR_AT = 364;  // places in cudaDeviceProp
static Result describe(char* properties) {
  const int major = COMPUTE / 100, minor = COMPUTE / 10 % 10;
  std::memset(properties, 0, 1000);
  std::memcpy(properties + MAJOR_AT, &major, sizeof major);
  std::memcpy(properties + MINOR_AT, &minor, sizeof minor);
  return DONE;
}
extern "C" Result cudaGetDevice(int* device) { *device = 0; return DONE; }
extern "C" Result cudaGetDeviceCount(int* count) { *count = 1; return DONE; }
extern "C" const char* cudaGetErrorString(int) { return "there is no device"; }
extern "C" Result cudaGetDeviceProperties(char* properties, int) { return describe(properties); }
extern "C" Result cudaGetDeviceProperties_v2(char* properties, int) { return describe(properties); }
extern "C" Result cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == MAJOR ? COMPUTE / 100 : attribute == MINOR ? COMPUTE / 10 % 10 : 1;
  return DONE;
}
#endif
