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
  /// True if the maximum number of problems has been reached, so that further ones are dropped: a generated file could
  /// have a hundred thousand, of which only the first are useful. Code that adds many problems may then stop, or leave
  /// out hints that are slow to compute.
  bool full() const { return all_.size() >= kMost; }
  /// Throws a SpecError with all problems in file order, without duplicates, if there are any.
  void throw_if_any();

  /// While a Note exists, the hint of every problem ends with its text `note`, which says where a module is used.
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
