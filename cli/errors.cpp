// Converts exceptions to messages and exit codes.
#include "cli/errors.h"

#include <boost/system/system_error.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/render/terminal.h"
#include "cli/text/sources.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/printable.h"
#include "engine/base/url.h"
#include "engine/spec/warnings.h"

namespace trainctl {
namespace {

/// nlohmann's error number for a string that is not UTF-8.
constexpr int kNotUtf8 = 316;

void print_diagnostics(const std::vector<Diagnostic>& diagnostics) {
  for (const Diagnostic& diagnostic : diagnostics) {
    std::string text = render(diagnostic, with_hidden_queries(source_of(diagnostic.pos)));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    std::cerr << text << "\n";
  }
}

void print_spec_error(const SpecError& error) {
  print_diagnostics(error.diagnostics());
  const size_t count = error.diagnostics().size();
  if (count > 1) std::cerr << count << " errors\n";
}

/// `what` may quote a file, a host or another program.
int print(const char* kind, const char* what, int exit_code) {
  std::cerr << paint(2, Paint::red, kind) << printable_lines(what) << "\n";
  return exit_code;
}

}  // namespace

/// "job.yaml:12:3: warning: network[2]: nothing reads …", as compilers write it.
void print_warnings(std::vector<Diagnostic> found) {
  for (Diagnostic& warning : found) {
    warning.message = "warning: " + warning.path + ": " + warning.message;
    warning.path.clear();
  }
  print_diagnostics(found);
}

void print_warnings(const JobSpec& spec) { print_warnings(warnings(spec)); }

int report_current_exception() {
  try {
    throw;
  } catch (const SpecError& error) {
    print_spec_error(error);
    return kExitSpec;
  } catch (const EnvError& error) {
    return print("error: ", error.what(), kExitEnv);
  } catch (const boost::system::system_error& error) {
    return print("error: ", describe_errno(error.code().value()).c_str(), kExitEnv);
  } catch (const nlohmann::json::type_error& error) {
    if (error.id != kNotUtf8) return print("bug: ", error.what(), kExitBug);
    return print("error: ", "a file name or text to be written as JSON is not valid UTF-8; rename the file or folder",
                 kExitEnv);
  } catch (const std::exception& error) {
    if (const auto refusal = machine_refusal()) return print("error: ", refusal->c_str(), kExitEnv);
    return print("bug: ", error.what(), kExitBug);
  }
}

}  // namespace trainctl
