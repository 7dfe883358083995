// Exceptions to messages and exit codes.
#include "cli/errors.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <new>
#include <string>

#include "cli/render/terminal.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void print_spec_error(const SpecError& error) {
  std::map<std::string, std::string> sources;
  for (const Diagnostic& diagnostic : error.diagnostics()) {
    const auto [source, is_new] = sources.try_emplace(diagnostic.pos.file);
    if (is_new && diagnostic.pos.known()) source->second = read_text(diagnostic.pos.file);
    std::string text = render(diagnostic, source->second);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    std::cerr << text << "\n";
  }
  const size_t count = error.diagnostics().size();
  if (count > 1) std::cerr << count << " errors\n";
}

int print(const char* kind, const char* what, int exit_code) {
  std::cerr << paint(2, Paint::red, kind) << what << "\n";
  return exit_code;
}

}  // namespace

int report_current_exception() {
  try {
    throw;
  } catch (const SpecError& error) {
    print_spec_error(error);
    return kExitSpec;
  } catch (const EnvError& error) {
    return print("error: ", error.what(), kExitEnv);
  } catch (const std::bad_alloc&) {
    return print("error: ", "this host has not enough memory", kExitEnv);
  } catch (const std::exception& error) {
    return print("bug: ", error.what(), kExitBug);
  }
}

}  // namespace trainctl
