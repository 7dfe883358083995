// Collects the cases of every family of ops in all_ops.def.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "engine/base/error.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

#define OP_FAMILY(folder) extern const OpFamily folder##_family;
#define GRAPH_FAMILY(folder) OP_FAMILY(folder)
#include "engine/ops/all_ops.def"
#undef OP_FAMILY
#define OP_FAMILY(folder) extern const OpCases folder##_cases;
#include "engine/ops/all_ops.def"
#undef OP_FAMILY

namespace {

/// The families that TRAINCTL_OP_CASES names, separated by commas; all families if it is not set.
std::vector<FamilyCases> wanted() {
  const std::span<const FamilyCases> all = all_cases();
  const char* const set = std::getenv("TRAINCTL_OP_CASES");
  if (set == nullptr) return {all.begin(), all.end()};
  std::vector<FamilyCases> some;
  std::istringstream names(set);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const FamilyCases& f) { return f.folder == name; });
    if (found == all.end()) check(false, "TRAINCTL_OP_CASES: no family of all_ops.def is '" + name + "'");
    some.push_back(*found);
  }
  return some;
}

template <class T>
std::vector<T> of_families(std::vector<T> OpCases::*member) {
  std::vector<T> all;
  for (const FamilyCases& each : wanted()) {
    const std::vector<T>& own = each.cases.*member;
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace

std::span<const FamilyCases> all_cases() {
  static const FamilyCases all[] = {
#define OP_FAMILY(folder) {#folder, folder##_family, folder##_cases},
#include "engine/ops/all_ops.def"
  };
  return all;
}

bool is_wanted(std::string_view op) {
  for (const FamilyCases& each : wanted())
    for (const OpDef* def : each.family.ops)
      if (def->name == op) return true;
  return false;
}

bool may_allocate(std::string_view kernel) {
  for (const FamilyCases& family : all_cases())
    for (const Exemption& e : family.cases.allocating)
      if (e.kernel == kernel) return true;
  return false;
}

const std::vector<OpCase>& op_cases() {
  static const auto all = of_families(&OpCases::rows);
  return all;
}
const std::vector<RuleCase>& rule_cases() {
  static const auto all = of_families(&OpCases::rules);
  return all;
}
const std::vector<GradientCase>& gradient_cases() {
  static const auto all = of_families(&OpCases::gradients);
  return all;
}
const std::vector<ShapeErrorCase>& shape_error_cases() {
  static const auto all = of_families(&OpCases::shape_errors);
  return all;
}
const std::vector<KernelCase>& kernel_cases() {
  static const auto all = of_families(&OpCases::kernels);
  return all;
}
const std::vector<LayerCase>& layer_cases() {
  static const auto all = of_families(&OpCases::layers);
  return all;
}

const Reference* find_reference(std::string_view op) {
  for (const FamilyCases& each : all_cases())
    for (const Reference& reference : each.cases.references)
      if (reference.op == op) return &reference;
  return nullptr;
}

const KernelReference* find_kernel_reference(std::string_view kernel) {
  for (const FamilyCases& each : all_cases())
    for (const KernelReference& reference : each.cases.kernel_references)
      if (reference.kernel == kernel) return &reference;
  return nullptr;
}

}  // namespace trainctl
