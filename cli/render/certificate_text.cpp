// A certificate of `trainctl verify` for the terminal.
#include "cli/render/certificate_text.h"

#include <fmt/format.h>

#include "cli/text/table.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string counts(const Certificate& c) {
  const size_t passed = c.count(CheckStatus::passed);
  std::string text = fmt::format("{} {} passed", passed, passed == 1 ? "check" : "checks");
  if (const size_t failed = c.count(CheckStatus::failed); failed > 0) text += fmt::format(", {} failed", failed);
  if (const size_t skipped = c.count(CheckStatus::skipped); skipped > 0) text += fmt::format(", {} skipped", skipped);
  return text;
}

}  // namespace

std::string certificate_text(const Certificate& c, size_t width) {
  Table table({"check", "result", "details"});
  for (const VerifiedCheck& check : c.checks) {
    table.add({check.name, std::string(to_string(check.status)), printable(check.summary)});
    for (const std::string& finding : check.findings) table.add_line(printable(finding));
  }
  std::string text = table.str(2, width);
  if (!c.changes.empty()) text += "  numbers are of a smaller job: " + join(c.changes) + "\n";
  return text + fmt::format("{} {}: {} ({:.1f} s)\n", printable(c.name), c.passed() ? "is verified" : "is NOT verified",
                            counts(c), c.seconds);
}

std::string certificate_line(const Certificate& c) {
  return fmt::format("{} on {} by trainctl {}: {}", c.passed() ? "verified" : "NOT verified", printable(c.written),
                     printable(c.trainctl), counts(c));
}

}  // namespace trainctl
