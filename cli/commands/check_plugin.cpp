// Loads the plugin of an option --plugin FILE, and tests its ops for `trainctl check`.
#include "cli/commands/check_plugin.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/plugins.h"
#include "engine/base/text.h"
#include "engine/ops/plugins/check/check_plugin.h"

namespace trainctl {
namespace {

void print_report(const PluginOp& op, const PluginOpReport& report) {
  if (report.faults.empty()) {
    std::cout << fmt::format("{}: {} ({} compared with one rank{}; {} compared with differences; {})\n", op.name,
                             "sound", plural(report.cuts, "cut"),
                             report.cut_letters.empty() ? "" : ": " + join(report.cut_letters, "; "),
                             plural(report.slopes, "gradient"), plural(report.calls, "call"));
    if (!op.has_gradient())
      std::cout << "note: " << op.name << ": no gradient flows through it, because it has no backward\n";
  }
  for (const std::string& note : report.notes) std::cout << "note: " << op.name << ": " << note << "\n";
  for (const std::string& fault : report.faults) std::cout << op.name << ": " << fault << "\n";
  std::cout.flush();
}

}  // namespace

std::string load_named_plugin(const std::string& file) {
  try {
    return load_plugin(std::filesystem::absolute(file).lexically_normal().string(), "");
  } catch (const PluginError& error) {
    throw SpecError({}, "--plugin", error.what(), error.hint);
  }
}

int check_plugin(const std::string& file) {
  const std::string digest = load_named_plugin(file);
  size_t wrong = 0;
  const std::vector<const PluginOp*> ops = ops_of_plugin(digest);
  for (const PluginOp* op : ops) {
    const PluginOpReport report = check_plugin_op(*op);
    print_report(*op, report);
    if (!report.faults.empty()) ++wrong;
  }
  if (wrong == 0)
    std::cout << fmt::format("{}: valid ({}, SHA-256 {})\n", file, plural(static_cast<int64_t>(ops.size()), "op"),
                             digest);
  else
    std::cout << fmt::format("{}: {} of {} wrong\n", file, wrong, plural(static_cast<int64_t>(ops.size()), "op"));
  return wrong == 0 ? kExitDone : kExitSpec;
}

}  // namespace trainctl
