#include "attnres/plots/html.h"

#include <gtest/gtest.h>

#include <string>

namespace attnres::html_test {
namespace {

TEST(EscapeHtml, LeavesNoMarkup) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape_html("plain text, zażółć 東京 🙂\n\ttab"),
            "plain text, zażółć 東京 🙂\n\ttab");
}

TEST(EscapeHtml, ReplacesControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(escape_html(std::string("a\0b\x1b\x7f\r", 6)), "a�b���");
  EXPECT_EQ(escape_html("\xff|\xc3|\xe2\x82"), "�|�|��");
  EXPECT_EQ(escape_html("\xc0\xbc"), "��") << "an overlong <";
  EXPECT_EQ(escape_html("\xed\xa0\x80"), "���") << "a surrogate";
  EXPECT_EQ(escape_html("\xf4\x90\x80\x80"), "����") << "beyond U+10FFFF";
}

TEST(Format, Counts) {
  EXPECT_EQ(format_whole(0), "0");
  EXPECT_EQ(format_whole(999), "999");
  EXPECT_EQ(format_whole(1000), "1,000");
  EXPECT_EQ(format_whole(1234567), "1,234,567");
  EXPECT_EQ(format_whole(-123456), "-123,456");
}

TEST(Format, Losses) {
  EXPECT_EQ(format_loss(1.43214), "1.4321");
  EXPECT_EQ(format_loss(0.012, true), "+0.0120");
  EXPECT_EQ(format_loss(-0.012, true), "−0.0120");
  EXPECT_EQ(format_loss(-0.00001, true), "0.0000");
}

}  // namespace
}  // namespace attnres::html_test
