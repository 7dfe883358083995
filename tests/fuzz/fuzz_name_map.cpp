// libFuzzer target: any text is parsed as a file of name maps, or causes a SpecError, which can be shown with the text.
#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/spec/name_map_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    (void)read_name_map(text, "fuzz.yaml");
  } catch (const SpecError& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) (void)render(diagnostic, text);
  }
  return 0;
}
