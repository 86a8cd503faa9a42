// Keeps a library that is built here loadable on older Linux systems; included before everything else in a library
// that travels (kernels/portable.py, .ci/prebuilt.py).
//
// NOTE [which systems a built library needs]
// A compiler calls the newest functions of its own C++ runtime and C library. What torch's headers and ours use of the
// runtime are templates: instantiated in the library itself, they need nothing newer than GCC 5. Three other things are
// replaced: the flag of glibc 2.32 that spares a process without threads its atomic operations, an exception that is
// raised by a function of GCC 11, and the versions of exp, log and pow of glibc 2.29, which differ from the first ones
// in how they report errors. The kernels of the gallery then pass the check for manylinux_2_28.
#pragma once
#include <new>

#ifdef __GLIBCXX__
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0

namespace std {
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__CUDACC__)
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver exp2,exp2@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver log2,log2@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");
#endif
#endif
