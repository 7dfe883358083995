// All families in all_ops.def, and lookup of their definitions by name.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>

#include "engine/base/error.h"
#include "engine/ops/op_family.h"
#include "engine/ops/registered_ops.h"

namespace trainctl {

#define OP_FAMILY(folder) extern const OpFamily folder##_family;
#define GRAPH_FAMILY(folder) OP_FAMILY(folder)
#include "engine/ops/all_ops.def"
#undef OP_FAMILY

namespace {

const OpFamily* const kFamilies[] = {
#define OP_FAMILY(folder) &folder##_family,
#include "engine/ops/all_ops.def"
};

/// A hash table from names to definitions, with linear probing. It is a class of its own because planning a job makes
/// hundreds of thousands of lookups.
template <class T>
class ByName {
 public:
  ByName(const std::vector<const T*>& all, const char* what) : what_(what) {
    for (const T* each : all) add(*each);
  }

  void add(const T& definition) {
    if (4 * (count_ + 1) > entries_.size()) grow();
    Entry& entry = entries_[place_of(definition.name)];
    check(entry.definition == nullptr, fmt::format("two {}s have the same name", what_));
    entry = {definition.name, &definition};
    ++count_;
  }

  /// Returns null if there is no definition with this name.
  const T* find(std::string_view name) const { return entries_[place_of(name)].definition; }

 private:
  struct Entry {
    std::string_view name;
    const T* definition = nullptr;
  };

  void grow() {
    const std::vector<Entry> old = std::move(entries_);
    entries_.assign(std::max<size_t>(1024, 2 * old.size()), {});
    for (const Entry& entry : old)
      if (entry.definition != nullptr) entries_[place_of(entry.name)] = entry;
  }

  /// Index of the entry with this name, or of a free entry.
  size_t place_of(std::string_view name) const {
    size_t place = hash(name);
    for (;; ++place) {
      const Entry& entry = entries_[place & (entries_.size() - 1)];
      if (entry.definition == nullptr || entry.name == name) return place & (entries_.size() - 1);
    }
  }

  /// A hash of the length and of the first and last letters of the name.
  static size_t hash(std::string_view name) {
    uint32_t first = 0, last = 0;
    if (name.size() >= sizeof first) {
      std::memcpy(&first, name.data(), sizeof first);
      std::memcpy(&last, name.data() + name.size() - sizeof last, sizeof last);
    } else {
      for (char letter : name) first = first << 8 | static_cast<unsigned char>(letter);
    }
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio (Fibonacci hashing)
    return static_cast<size_t>(((uint64_t{first} << 32 | last) + name.size()) * kOdd >> 40);
  }

  const char* what_;
  size_t count_ = 0;
  std::vector<Entry> entries_;  ///< the size is a power of two; at most a quarter is in use
};

const std::vector<const OpDef*>& ops() {
  static const std::vector<const OpDef*> all = [] {
    std::vector<const OpDef*> list;
    for (const OpFamily* family : kFamilies) list.insert(list.end(), family->ops.begin(), family->ops.end());
    return list;
  }();
  return all;
}

const std::vector<const KernelDef*>& kernels() {
  static const std::vector<const KernelDef*> all = [] {
    std::vector<const KernelDef*> list;
    for (const OpDef* op : ops()) {
      check(std::string_view(op->name) == op->kernel.name,
            fmt::format("the kernel of op {} has the same name", op->name));
      if (!op->collective) list.push_back(&op->kernel);
    }
    for (const OpFamily* family : kFamilies) list.insert(list.end(), family->kernels.begin(), family->kernels.end());
    return list;
  }();
  return all;
}

ByName<OpDef>& ops_by_name() {
  static ByName<OpDef> names(ops(), "op");
  return names;
}

ByName<KernelDef>& kernels_by_name() {
  static ByName<KernelDef> names(kernels(), "kernel");
  return names;
}

}  // namespace

std::span<const OpFamily* const> all_families() { return kFamilies; }

void register_op(const OpDef& op) {
  ops_by_name().add(op);
  kernels_by_name().add(op.kernel);
}

const OpFamily& family_of(const KernelDef& kernel) {
  static const std::map<const KernelDef*, const OpFamily*> families = [] {
    std::map<const KernelDef*, const OpFamily*> all;
    for (const OpFamily* family : kFamilies) {
      for (const OpDef* op : family->ops) all.emplace(&op->kernel, family);
      for (const KernelDef* each : family->kernels) all.emplace(each, family);
    }
    return all;
  }();
  static const OpFamily added = {.ops = {}, .profile_part = "plugins"};
  const auto found = families.find(&kernel);
  return found == families.end() ? added : *found->second;
}

std::span<const OpDef* const> all_ops() { return ops(); }

const OpDef* find_op(std::string_view name) { return ops_by_name().find(name); }

const OpDef& get_op(std::string_view name) {
  const OpDef* op = find_op(name);
  if (op == nullptr) check(false, fmt::format("no family of all_ops.def has the op '{}'", name));
  return *op;
}

std::span<const KernelDef* const> all_kernels() { return kernels(); }

const KernelDef* find_kernel(std::string_view name) { return kernels_by_name().find(name); }

const KernelDef& get_kernel(std::string_view name) {
  const KernelDef* kernel = find_kernel(name);
  if (kernel == nullptr) check(false, fmt::format("no family of all_ops.def has the kernel '{}'", name));
  return *kernel;
}

Cost kernel_cost(const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs) {
  if (kernel.cost != nullptr) return kernel.cost(inputs, outputs, attrs);
  int64_t bytes = 0;
  for (const TensorInfo& in : inputs) bytes += bytes_of(in);
  for (const TensorInfo& out : outputs)
    bytes += bytes_of(out) * (kernel.updates_outputs && out.dtype == DType::f32 ? 2 : 1);
  return {.bytes = static_cast<double>(bytes)};
}

}  // namespace trainctl
