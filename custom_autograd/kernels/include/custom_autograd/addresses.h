// Remembers the address of each kernel that a source registers, so that a call can do without the dispatcher.
// Included before torch's header of libraries, which registers through the two functions that are named here.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>
#include <vector>

namespace custom_autograd {

struct Address {
  std::string key, name;
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
};

// Of this library alone: what is inline would be shared by all libraries of the process.
static std::vector<Address>& addresses() {
  static std::vector<Address> found;
  return found;
}

static std::string& current_key() {
  static std::string key;
  return key;
}

[[maybe_unused]] static void note_key(const char* key) { current_key() = key; }

[[maybe_unused]] static void note_kernel(const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
  addresses().push_back({current_key(), name, kernel});
}

}  // namespace custom_autograd

#define aoti_torch_library_init_impl(ns, key, file, line, library) \
  (::custom_autograd::note_key(key), aoti_torch_library_init_impl(ns, key, file, line, library))
#define torch_library_impl(library, name, kernel, version) \
  (::custom_autograd::note_kernel(name, kernel), torch_library_impl(library, name, kernel, version))
#define aoti_torch_library_impl(library, name, kernel) \
  (::custom_autograd::note_kernel(name, kernel), aoti_torch_library_impl(library, name, kernel))

// The kernel that is registered under a name at a dispatch key ("CPU", "CUDA"), or null. A source is compiled alone.
extern "C" __attribute__((used, visibility("default"))) void* custom_autograd_kernel(const char* key, const char* name) {
  void* found = nullptr;
  for (const auto& one : custom_autograd::addresses())
    if (one.key == key && one.name == name) found = reinterpret_cast<void*>(one.kernel);
  return found;
}
