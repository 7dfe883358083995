// Exchanges keys and values between the processes of one mpirun before they can connect, using PMIx, which Open MPI and
// Slurm's --mpi=pmix serve. The declarations are those of the PMIx standard, chapter "Data structures and types" (its
// ABI is stable since version 2), so that no header is needed to build.
#include "launcher/clusters/pmix.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl::clusters {
namespace {

constexpr int kSuccess = 0;
constexpr uint16_t kString = 3;
constexpr uint8_t kGlobal = 3;

struct Process {
  std::array<char, 256> name_space;
  uint32_t rank;
};
/// The union's largest member has less than 64 bytes.
struct PmixValue {
  uint16_t type;
  union {
    char* string;
    std::array<char, 64> largest;
  } data;
};

}  // namespace

struct Pmix::Library {
  void* handle = nullptr;
  Process self{};
  int (*init)(Process*, void*, size_t) = nullptr;
  int (*finalize)(const void*, size_t) = nullptr;
  int (*put)(uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const Process*, size_t, const void*, size_t) = nullptr;
  int (*get)(const Process*, const char*, const void*, size_t, PmixValue**) = nullptr;
  const char* (*text)(int) = nullptr;

  template <class F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (function == nullptr) throw EnvError(std::string("libpmix.so.2 has no function ") + name);
  }
  void require(int status, const char* what) const {
    if (status != kSuccess) throw EnvError(std::string("PMIx: ") + what + ": " + text(status));
  }
};

Pmix::Pmix() : library_(new Library) {
  Library& pmix = *library_;
  pmix.handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  try {
    if (pmix.handle == nullptr)
      throw EnvError(
          std::string("mpirun started this process, but PMIx, through which processes exchange addresses, is not "
                      "available: ") +
          dlerror() + "; install libpmix2, or list the hosts in launch.hosts");
    pmix.load(pmix.init, "PMIx_Init");
    pmix.load(pmix.finalize, "PMIx_Finalize");
    pmix.load(pmix.put, "PMIx_Put");
    pmix.load(pmix.commit, "PMIx_Commit");
    pmix.load(pmix.fence, "PMIx_Fence");
    pmix.load(pmix.get, "PMIx_Get");
    pmix.load(pmix.text, "PMIx_Error_string");
    pmix.require(pmix.init(&pmix.self, nullptr, 0), "cannot connect to the server");
  } catch (const EnvError&) {
    delete library_;
    throw;
  }
}

Pmix::~Pmix() {
  library_->finalize(nullptr, 0);
  delete library_;
}

void Pmix::put(const std::string& key, const std::string& value) {
  PmixValue entry{};
  entry.type = kString;
  entry.data.string = const_cast<char*>(value.c_str());
  library_->require(library_->put(kGlobal, key.c_str(), &entry), "cannot put a value");
}

void Pmix::fence() {
  library_->require(library_->commit(), "cannot commit");
  library_->require(library_->fence(nullptr, 0, nullptr, 0), "the processes cannot synchronize");
}

/// The library owns the value, which remains valid until this process ends.
std::string Pmix::get(int index, const std::string& key) {
  Process other = library_->self;
  other.rank = static_cast<uint32_t>(index);
  PmixValue* value = nullptr;
  library_->require(library_->get(&other, key.c_str(), nullptr, 0, &value), "cannot get a value");
  if (value == nullptr || value->type != kString) throw EnvError("PMIx: the value of " + key + " is not a string");
  return value->data.string;
}

}  // namespace trainctl::clusters
