// libFuzzer target: any bytes are read as frames between launcher and agent, or refused. A frame that was read encodes
// to the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/hosts/frame.h"
#include "launcher/hosts/report_json.h"
#include "launcher/hosts/session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl::hosts;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  FrameReader reader;
  Session session;
  size_t read = 0;
  for (size_t at = 0; at < size; at += 7) {
    reader.feed(bytes.substr(at, 7));
    while (const auto frame = reader.next()) {
      const std::string again = encode(*frame);
      if (bytes.substr(read, again.size()) != again) std::abort();
      read += again.size();
      bool gap = false;
      if (const auto* numbered = std::get_if<Numbered>(&*frame)) (void)session.receive(*numbered, gap);
    }
  }
  if (const auto report = parse_report(bytes, 1)) (void)report_json(*report, 1);
  return 0;
}
