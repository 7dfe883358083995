// A shared library that is opened on first use, so that one binary also starts where it is missing.
#include "engine/base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::vector<std::string> folders() {
  const char* text = std::getenv(kCudaLibraryPath);
  std::vector<std::string> found;
  std::string folder;
  for (const char* c = text == nullptr ? "" : text;; ++c) {
    if (*c != ':' && *c != '\0') {
      folder += *c;
      continue;
    }
    if (!folder.empty()) found.push_back(folder + "/");
    folder.clear();
    if (*c == '\0') return found;
  }
}

std::string path_of(void* handle, const std::string& otherwise) {
  const link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0' ? map->l_name : otherwise;
}

}  // namespace

DynamicLibrary::DynamicLibrary(std::string what, const std::vector<std::string>& sonames) : what_(std::move(what)) {
  std::vector<std::string> places = folders();
  places.emplace_back();
  std::vector<std::string> said;
  for (const std::string& place : places) {
    for (const std::string& soname : sonames) {
      handle_ = dlopen((place + soname).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        path_ = path_of(handle_, soname);
        return;
      }
      const char* reason = dlerror();
      said.emplace_back(reason == nullptr ? soname + ": cannot be opened" : reason);
    }
  }
  throw EnvError("cannot open " + what_ + ": " + join(said, "; ") +
                 "\n  install it, or add its folder to LD_LIBRARY_PATH or " + kCudaLibraryPath);
}

bool DynamicLibrary::has(const char* symbol) const { return dlsym(handle_, symbol) != nullptr; }

void* DynamicLibrary::find(const char* symbol) const {
  void* address = dlsym(handle_, symbol);
  if (address == nullptr)
    throw EnvError(what_ + " has no " + symbol + ": " + path_ + " is too old; install a newer one");
  return address;
}

}  // namespace trainctl
