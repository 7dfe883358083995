// libFuzzer target: for any text parse_job returns a job or throws SpecError, and the job is parsed unchanged from its
// to_yaml. The part after a NUL byte is an override of the command line.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl;
  std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  if (const size_t end = text.find('\0'); end != std::string::npos) {
    overrides.push_back(text.substr(end + 1));
    text.resize(end);
  }
  std::string resolved;
  try {
    resolved = to_yaml(parse_job(text, "fuzz.yaml", overrides));
  } catch (const SpecError& e) {
    for (const Diagnostic& diagnostic : e.diagnostics()) render(diagnostic, text);
    return 0;
  }
  try {
    if (to_yaml(parse_job(resolved, "other/fuzz.yaml")) == resolved) return 0;
    std::fprintf(stderr, "reads back as another job:\n%s", resolved.c_str());
  } catch (const SpecError& e) {
    std::fprintf(stderr, "does not read back: %s\n%s", e.what(), resolved.c_str());
  }
  std::abort();
}
