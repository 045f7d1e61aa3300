/* Headers in JSON, as Java's clients write them. Python: wire/command.py.

   Only what they write is read: an object without spaces, of whole numbers, of texts without
   escapes, and of extFields; there texts may have escapes, but only for what is ASCII. */

#include "native.h"

#define JSON 0

/* Whether *text* stands at *at*, before *end*; moves on behind it. */
static int skip(const uint8_t **at, const uint8_t *end, const char *text)
{
    size_t size = strlen(text);
    if ((size_t)(end - *at) < size || memcmp(*at, text, size) != 0)
        return 0;
    *at += size;
    return 1;
}

/* The text between quotes at *at*, as it is written, and whether that has escapes; moves on behind
 * it. */
static int read_text(const uint8_t **at, const uint8_t *end, Text *text, int *escapes)
{
    const uint8_t *from = *at + 1, *to = from;
    *escapes = 0;
    if (*at >= end || **at != '"')
        return 0;
    for (; to < end && *to != '"'; to++) {
        if (*to < 0x20)
            return 0;
        if (*to == '\\') {
            *escapes = 1;
            to++;
        }
    }
    if (to >= end)
        return 0;
    *text = (Text){(const char *)from, to - from};
    *at = to + 1;
    return 1;
}

static int read_int32(const uint8_t **at, const uint8_t *end, int32_t *number)
{
    int negative = skip(at, end, "-"), digits = 0;
    int64_t value = 0;
    const uint8_t *from = *at;
    for (; *at < end && **at >= '0' && **at <= '9' && digits < 10; ++*at, digits++)
        value = value * 10 + (**at - '0');
    if (digits == 0 || (digits > 1 && *from == '0') || (*at < end && **at != ',' && **at != '}'))
        return 0;
    value = negative ? -value : value;
    *number = (int32_t)value;
    return value >= INT32_MIN && value <= INT32_MAX;
}

/* Moves on behind the object of extFields at *at*, whose members are from *begin* to *stop*; their
   escapes are looked at when they are read. */
static int skip_fields(
    const uint8_t **at, const uint8_t *end, const uint8_t **begin, const uint8_t **stop)
{
    Text text;
    int escapes;
    if (!skip(at, end, "{"))
        return 0;
    *begin = *at;
    while (*at < end && **at != '}') {
        if ((*at != *begin && !skip(at, end, ",")) || !read_text(at, end, &text, &escapes)
            || !skip(at, end, ":") || !read_text(at, end, &text, &escapes))
            return 0;
    }
    *stop = *at;
    return skip(at, end, "}");
}

int read_json_header(const uint8_t *frame, Py_ssize_t size, Header *header)
{
    if (size < 4 || frame[0] != JSON)
        return 0;
    Py_ssize_t header_size = get32(frame) & 0xFFFFFF;
    if (header_size > MAX_HEADER_BYTES || header_size > size - 4)
        return 0;
    const uint8_t *at = frame + 4, *end = at + header_size, *begin = at, *stop = at;
    Text name, text;
    int escapes;
    int32_t code = 0, version;
    *header = (Header){.body_at = 4 + header_size};
    if (!is_utf8(at, (size_t)header_size) || !skip(&at, end, "{"))
        return 0;
    for (int first = 1; first || !skip(&at, end, "}"); first = 0) {
        if ((!first && !skip(&at, end, ",")) || !read_text(&at, end, &name, &escapes) || escapes
            || !skip(&at, end, ":"))
            return 0;
        if (is_word(name, "extFields")) {
            if (!skip_fields(&at, end, &begin, &stop))
                return 0;
        } else if (is_word(name, "language") || is_word(name, "serializeTypeCurrentRPC")) {
            if (!read_text(&at, end, &text, &escapes) || escapes)
                return 0;
        } else if (is_word(name, "code")) {
            if (!read_int32(&at, end, &code))
                return 0;
        } else if (is_word(name, "opaque")) {
            if (!read_int32(&at, end, &header->opaque))
                return 0;
        } else if (is_word(name, "flag")) {
            if (!read_int32(&at, end, &header->flag))
                return 0;
        } else if (!is_word(name, "version") || !read_int32(&at, end, &version)) {
            return 0;
        }
    }
    header->code = code;
    header->fields_at = begin - frame;
    header->fields_end = stop - frame;
    return at == end;
}

static int hex_digit(uint8_t letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The text without its escapes, in *room*; 0 where there is no room, or an escape is none or of
 * more than ASCII. */
static int unescape(Text *text, char **room, Py_ssize_t *left)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *from = text->at, *end = from + text->size;
    char *to = *room;
    if (text->size > *left)
        return 0;
    while (from < end) {
        if (*from != '\\') {
            *to++ = *from++;
            continue;
        }
        const char *escape = end - from < 2 || from[1] == 0 ? NULL : strchr(escapes, from[1]);
        if (escape != NULL) {
            *to++ = meant[escape - escapes];
            from += 2;
            continue;
        }
        if (end - from < 6 || from[1] != 'u' || from[2] != '0' || from[3] != '0')
            return 0;
        int high = hex_digit((uint8_t)from[4]), low = hex_digit((uint8_t)from[5]);
        if (high < 0 || high > 7 || low < 0)
            return 0;
        *to++ = (char)(high << 4 | low);
        from += 6;
    }
    *text = (Text){*room, to - *room};
    *left -= to - *room;
    *room = to;
    return 1;
}

int read_json_field(const uint8_t *frame, Py_ssize_t *at, Py_ssize_t end, Text *name, Text *value,
    char **room, Py_ssize_t *left)
{
    const uint8_t *from = frame + *at, *stop = frame + end;
    int name_escapes, escapes;
    skip(&from, stop, ",");
    if (!read_text(&from, stop, name, &name_escapes) || name_escapes || !skip(&from, stop, ":")
        || !read_text(&from, stop, value, &escapes) || (escapes && !unescape(value, room, left)))
        return 0;
    *at = from - frame;
    return 1;
}
