// Remembers the address of each kernel that a source registers, so that a call can do without the dispatcher.
// Included before torch's header of libraries, which registers through the functions that are named here.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>
#include <vector>

namespace custom_autograd {

struct Library {  // one block of registrations
  TorchLibraryHandle handle;
  std::string space, key;  // the key is empty in a block that defines
};

struct Address {
  std::string space, key, name;
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
};

// Of this library alone: what is inline would be shared by all libraries of the process.
static std::vector<Library>& libraries() {
  static std::vector<Library> found;
  return found;
}

static std::vector<Address>& addresses() {
  static std::vector<Address> found;
  return found;
}

[[maybe_unused]] static AOTITorchError note_library(
    AOTITorchError error, const char* space, const char* key, const TorchLibraryHandle* handle) {
  if (error == 0) libraries().push_back({*handle, space, key});
  return error;
}

[[maybe_unused]] static AOTITorchError note_kernel(
    AOTITorchError error, TorchLibraryHandle handle, const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
  for (auto one = libraries().rbegin(); error == 0 && one != libraries().rend(); ++one)  // the last that had this handle
    if (one->handle == handle) {
      addresses().push_back({one->space, one->key, name, kernel});
      break;
    }
  return error;
}

}  // namespace custom_autograd

#define aoti_torch_library_init_impl(ns, key, file, line, library) \
  ::custom_autograd::note_library(aoti_torch_library_init_impl(ns, key, file, line, library), ns, key, library)
#define aoti_torch_library_init_def(ns, file, line, library) \
  ::custom_autograd::note_library(aoti_torch_library_init_def(ns, file, line, library), ns, "", library)
#define aoti_torch_library_init_fragment(ns, file, line, library) \
  ::custom_autograd::note_library(aoti_torch_library_init_fragment(ns, file, line, library), ns, "", library)
#define torch_library_impl(library, name, kernel, version) \
  ::custom_autograd::note_kernel(torch_library_impl(library, name, kernel, version), library, name, kernel)
#define aoti_torch_library_impl(library, name, kernel) \
  ::custom_autograd::note_kernel(aoti_torch_library_impl(library, name, kernel), library, name, kernel)

// The dispatch key ("CPU", "PrivateUse1") and the address of the kernel that was registered in some place under "namespace" and
// "name", counted from 0; null past the last one.
extern "C" __attribute__((used, visibility("default"))) const char* custom_autograd_kernel(
    uint64_t place, const char* space, const char* name, void** kernel) {
  for (const auto& one : custom_autograd::addresses())
    if (one.space == space && one.name == name && place-- == 0) {
      *kernel = reinterpret_cast<void*>(one.kernel);
      return one.key.c_str();
    }
  return nullptr;
}
