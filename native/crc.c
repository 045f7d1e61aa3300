/* CRC-32 as zlib computes it, which Java's CRC32 does too: reflected polynomial 0xEDB88320.

   Where the processor multiplies without carries, 64 bytes are folded at a time. Source: Gopal and
   others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009;
   the constants are its powers of x modulo the polynomial. ARM has instructions for this very
   checksum, used where the compiler may count on them; they ran under an emulator only. Elsewhere
   eight bytes are looked up at a time ("slicing"). */

#include "native.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define CAN_FOLD 1
#include <immintrin.h>
#else
#define CAN_FOLD 0
#endif

#if defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
#define HAS_CRC 1
#include <arm_acle.h>
#else
#define HAS_CRC 0
#endif

#define POLYNOMIAL 0xEDB88320u

/* [n][byte]: what a byte adds that n more bytes follow */
static uint32_t slices[8][256];
#if CAN_FOLD
static int folds;
#endif

void crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        slices[0][byte] = crc;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++)
            slices[n][byte] = slices[n - 1][byte] >> 8 ^ slices[0][slices[n - 1][byte] & 0xFF];
#if CAN_FOLD
    __builtin_cpu_init();
    folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* *crc* is the register here: inverted before and after by crc_of() */
static uint32_t by_slices(const uint8_t *at, size_t size, uint32_t crc)
{
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low =
            crc ^ (at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = slices[7][low & 0xFF] ^ slices[6][low >> 8 & 0xFF] ^ slices[5][low >> 16 & 0xFF]
            ^ slices[4][low >> 24] ^ slices[3][at[4]] ^ slices[2][at[5]] ^ slices[1][at[6]]
            ^ slices[0][at[7]];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ slices[0][(crc ^ *at) & 0xFF];
    return crc;
}

#if CAN_FOLD
#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i fold(__m128i value, __m128i next, __m128i by)
{
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11)),
        next);
}

/* at least 64 bytes, a multiple of 16 */
FOLDING static uint32_t by_folding(const uint8_t *at, size_t size, uint32_t crc)
{
    const __m128i by_64 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4),
                  by_16 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    const __m128i to_64 = _mm_set_epi64x(0, 0x0163CD6124),
                  reduce = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
    const __m128i low_32 = _mm_set_epi32(0, 0, 0, -1);
    const __m128i *next = (const __m128i *)at;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(next), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(next + 1), c = _mm_loadu_si128(next + 2),
            d = _mm_loadu_si128(next + 3);
    for (next += 4, size -= 64; size >= 64; next += 4, size -= 64) {
        a = fold(a, _mm_loadu_si128(next), by_64);
        b = fold(b, _mm_loadu_si128(next + 1), by_64);
        c = fold(c, _mm_loadu_si128(next + 2), by_64);
        d = fold(d, _mm_loadu_si128(next + 3), by_64);
    }
    a = fold(fold(fold(a, b, by_16), c, by_16), d, by_16);
    for (; size; next++, size -= 16)
        a = fold(a, _mm_loadu_si128(next), by_16);
    /* 128 bits to 96 */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4),
        _mm_clmulepi64_si128(_mm_and_si128(a, low_32), to_64, 0x00)); /* to 64 */
    /* Barrett's reduction, to 32 */
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), reduce, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32), reduce, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#endif

uint32_t crc_of(const uint8_t *data, size_t size, uint32_t before)
{
    uint32_t crc = ~before;
#if HAS_CRC
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        crc = __crc32d(crc, word);
    }
#endif
#if CAN_FOLD
    if (folds && size >= 64) {
        size_t whole = size & ~(size_t)15;
        crc = by_folding(data, whole, crc);
        data += whole;
        size -= whole;
    }
#endif
    return ~by_slices(data, size, crc);
}

/* crc32(data, before=0): as zlib's */
FUNCTION(crc32)
{
    unsigned long before = 0;
    Py_buffer data;
    if (count < 1 || count > 2) {
        PyErr_Format(PyExc_TypeError, "crc32() takes 1 or 2 arguments, not %zd", count);
        return NULL;
    }
    if (count == 2 && (before = PyLong_AsUnsignedLongMask(args[1])) == (unsigned long)-1
        && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc = crc_of(data.buf, (size_t)data.len, (uint32_t)before);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}
