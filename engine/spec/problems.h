// Collects all errors in a job, so that they are reported together.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

class Problems {
 public:
  void add(const SourcePos& pos, const std::string& path, const std::string& message, const std::string& hint = {});
  /// True if an error in this field or inside it is already known: consequences of it are not reported separately.
  bool touch(std::string_view path) const;
  bool empty() const { return all_.empty(); }
  /// True once no more are kept: a generated file could have a hundred thousand, and only the first ones are useful.
  /// Whoever adds many may stop, or leave out hints that are slow to find.
  bool full() const { return all_.size() >= kMost; }
  /// Throws them in file order, without duplicates.
  void throw_if_any();

  /// While one exists, the hint of every problem ends with `note`, which says where a module is used.
  class Note {
   public:
    Note(Problems& problems, std::string note) : problems_(problems) { problems_.notes_.push_back(std::move(note)); }
    ~Note() { problems_.notes_.pop_back(); }
    Note(const Note&) = delete;
    Note& operator=(const Note&) = delete;

   private:
    Problems& problems_;
  };
  /// The notes that exist now, the innermost first.
  std::string note() const;

 private:
  std::vector<std::string> notes_;
  static constexpr size_t kMost = 200;
  std::vector<Diagnostic> all_;
};

}  // namespace trainctl
