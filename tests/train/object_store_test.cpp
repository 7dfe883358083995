// Tests of addresses, lists and credentials of object stores. tests/stores tests the requests.
#include <doctest/doctest.h>

#include "engine/base/url.h"
#include "engine/train/files/store/credentials.h"
#include "engine/train/files/store/objects.h"
#include "engine/train/files/store/signature.h"

using namespace trainctl;

TEST_CASE("in the pattern of a key * matches no slash, and ** matches any folders") {
  CHECK(object_store::matches_key("set/*.tar", "set/a.tar"));
  CHECK_FALSE(object_store::matches_key("set/*.tar", "set/x/a.tar"));
  CHECK(object_store::matches_key("set/**/*.tar", "set/a.tar"));
  CHECK(object_store::matches_key("set/**/*.tar", "set/x/y/a.tar"));
  CHECK(object_store::matches_key("set/part-?.csv", "set/part-7.csv"));
  CHECK_FALSE(object_store::matches_key("set/part-?.csv", "set/part-17.csv"));
}

TEST_CASE("keys are encoded as a signature needs them, and entities of a list are replaced once") {
  CHECK(object_store::percent_encoded("a b/ü+~.txt", true) == "a%20b/%C3%BC%2B~.txt");
  CHECK(object_store::percent_encoded("a/b", false) == "a%2Fb");
  size_t at = 0;
  const std::string xml = "<L><Key>a&amp;lt;b</Key><Key>c&quot;</Key></L>";
  CHECK(object_store::next_element(xml, "Key", at) == "a&lt;b");
  CHECK(object_store::next_element(xml, "Key", at) == "c\"");
  CHECK_FALSE(object_store::next_element(xml, "Key", at));
}

TEST_CASE("a file of credentials has sections with keys, and comments and blanks do not count") {
  const object_store::IniFile file = object_store::parse_ini(
      "# work\n[default]\naws_access_key_id = A\n\n[profile lab]\nregion=eu-west-1 \n; x = y\n");
  CHECK(file.at("default").at("aws_access_key_id") == "A");
  CHECK(file.at("profile lab").at("region") == "eu-west-1");
  CHECK(file.at("profile lab").size() == 1);
}

TEST_CASE("an address is shown without its user, password and query") {
  CHECK(shown_url("https://me:pw@host/a.tar?X-Amz-Signature=s#x") == "https://host/a.tar");
  CHECK(shown_url("s3://bucket/a@b.tar") == "s3://bucket/a@b.tar");
  CHECK(with_hidden_queries("path: ['https://h/a?k=v', s3://b/k?]") == "path: ['https://h/a?***', s3://b/k?]");
  CHECK(is_url("gs://bucket/x"));
  CHECK_FALSE(is_url("data/s3/x"));
}

TEST_CASE("a signature is that of the example in the documentation of Amazon S3") {
  // "Example: GET Bucket (List Objects)", https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
  const object_store::Keys keys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  const std::vector<std::string> headers = object_store::signature_headers(
      "GET", "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", keys, "us-east-1", 1369353600);
  CHECK(headers.back() ==
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}
