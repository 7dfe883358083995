// Collects all errors in a job.
#include "engine/spec/problems.h"

#include <algorithm>
#include <tuple>

namespace trainctl {

void Problems::add(const SourcePos& pos, const std::string& path, const std::string& message, const std::string& hint) {
  if (full()) return;
  // A module used twelve times reports its error once.
  const bool known = std::any_of(all_.begin(), all_.end(), [&](const Diagnostic& d) {
    return d.pos == pos && d.path == path && d.message == message;
  });
  if (known) return;
  const std::string use = note();
  all_.push_back({pos, path, message, hint.empty() || use.empty() ? hint + use : hint + "; " + use});
}

std::string Problems::note() const {
  std::string text;
  for (auto note = notes_.rbegin(); note != notes_.rend(); ++note)
    if (!note->empty()) text += (text.empty() ? "" : ", ") + *note;
  return text;
}

bool Problems::touch(std::string_view path) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Diagnostic& d) {
    if (!std::string_view(d.path).starts_with(path)) return false;
    return d.path.size() == path.size() || d.path[path.size()] == '.' || d.path[path.size()] == '[';
  });
}

void Problems::throw_if_any() {
  if (all_.empty()) return;
  std::stable_sort(all_.begin(), all_.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.pos.line, a.pos.column) < std::tie(b.pos.line, b.pos.column);
  });
  throw SpecError(std::move(all_));
}

}  // namespace trainctl
