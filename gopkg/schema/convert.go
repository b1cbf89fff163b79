package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"loaderx/gopkg/errs"
)

// maxGrowth bounds how many times longer than the file its JSON text is: two
// bytes, an empty bin in an array, become seventeen.
const maxGrowth = 9

// toJSON converts a packed map.
func toJSON(packed []byte) ([]byte, error) {
	if len(packed) > MaxBytes {
		return nil, fmt.Errorf("more than %d bytes: %w", MaxBytes, errs.ErrFormat)
	}
	source := bytes.NewReader(packed)
	r := reader{dec: msgpack.NewDecoder(source)}
	code, err := r.dec.PeekCode()
	if err != nil || !isMap(code) {
		return nil, fmt.Errorf("not a msgpack map: %w", errs.ErrFormat)
	}
	if err := r.value(0); err != nil {
		return nil, err
	}
	if source.Len() > 0 {
		return nil, fmt.Errorf("%d bytes behind the map: %w", source.Len(), errs.ErrFormat)
	}
	return r.out, nil
}

func isMap(c byte) bool {
	return msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32
}

// reader appends the JSON form of what dec delivers to out. Lengths that the
// file claims are never allocated for: elements are read one by one.
type reader struct {
	dec *msgpack.Decoder
	out []byte
}

func (r *reader) value(depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("nested deeper than %d: %w", MaxDepth, errs.ErrFormat)
	}
	c, err := r.dec.PeekCode()
	if err != nil {
		return malformed(err)
	}
	switch {
	case c == msgpcode.Nil:
		r.out = append(r.out, "null"...)
		return malformed(r.dec.DecodeNil())
	case c == msgpcode.True || c == msgpcode.False:
		b, err := r.dec.DecodeBool()
		r.out = strconv.AppendBool(r.out, b)
		return malformed(err)
	case c == msgpcode.Uint64:
		n, err := r.dec.DecodeUint64()
		r.out = strconv.AppendUint(r.out, n, 10)
		return malformed(err)
	case msgpcode.IsFixedNum(c) || c >= msgpcode.Uint8 && c <= msgpcode.Int64:
		n, err := r.dec.DecodeInt64()
		r.out = strconv.AppendInt(r.out, n, 10)
		return malformed(err)
	case c == msgpcode.Float || c == msgpcode.Double:
		return r.float()
	case isString(c):
		return r.text()
	case c == msgpcode.Bin8 || c == msgpcode.Bin16 || c == msgpcode.Bin32:
		return r.binary(depth)
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		return r.array(depth)
	case isMap(c):
		return r.object(depth)
	}
	return fmt.Errorf("msgpack type %#x has no JSON form: %w", c, errs.ErrFormat)
}

func isString(c byte) bool {
	return msgpcode.IsFixedString(c) || c == msgpcode.Str8 || c == msgpcode.Str16 || c == msgpcode.Str32
}

func malformed(err error) error {
	if err == nil {
		return nil
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("cut short: %w", errs.ErrFormat)
	}
	return fmt.Errorf("%w: %v", errs.ErrFormat, err)
}

func (r *reader) float() error {
	f, err := r.dec.DecodeFloat64()
	if err != nil {
		return malformed(err)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("number %v has no JSON form: %w", f, errs.ErrFormat)
	}
	start := len(r.out)
	r.out = strconv.AppendFloat(r.out, f, 'g', -1, 64)
	// A whole number must not come back as an integer.
	if !bytes.ContainsAny(r.out[start:], ".e") {
		r.out = append(r.out, ".0"...)
	}
	return nil
}

func (r *reader) text() error {
	s, err := r.dec.DecodeString()
	if err != nil {
		return malformed(err)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("string is not UTF-8: %w", errs.ErrFormat)
	}
	quoted, err := json.Marshal(s)
	r.out = append(r.out, quoted...)
	return malformed(err)
}

// bytesKey is the only key of the object that stands for binary data in JSON.
const bytesKey = "__bytes__"

// binary counts as nested one deeper, as its object is when it is packed again.
func (r *reader) binary(depth int) error {
	if depth == MaxDepth {
		return fmt.Errorf("nested deeper than %d: %w", MaxDepth, errs.ErrFormat)
	}
	b, err := r.dec.DecodeBytes()
	if err != nil {
		return malformed(err)
	}
	r.out = append(r.out, `{"`+bytesKey+`":"`...)
	r.out = base64.StdEncoding.AppendEncode(r.out, b)
	r.out = append(r.out, `"}`...)
	return nil
}

func (r *reader) array(depth int) error {
	n, err := r.dec.DecodeArrayLen()
	if err != nil {
		return malformed(err)
	}
	r.out = append(r.out, '[')
	for i := range n {
		if i > 0 {
			r.out = append(r.out, ',')
		}
		if err := r.value(depth + 1); err != nil {
			return err
		}
	}
	r.out = append(r.out, ']')
	return nil
}

func (r *reader) object(depth int) error {
	n, err := r.dec.DecodeMapLen()
	if err != nil {
		return malformed(err)
	}
	r.out = append(r.out, '{')
	for i := range n {
		if i > 0 {
			r.out = append(r.out, ',')
		}
		c, err := r.dec.PeekCode()
		if err != nil {
			return malformed(err)
		}
		if !isString(c) {
			return fmt.Errorf("map key of msgpack type %#x, want a string: %w", c, errs.ErrFormat)
		}
		if err := r.text(); err != nil {
			return err
		}
		r.out = append(r.out, ':')
		if err := r.value(depth + 1); err != nil {
			return err
		}
	}
	r.out = append(r.out, '}')
	return nil
}

// fromJSON packs a JSON object.
func fromJSON(text []byte) ([]byte, error) {
	if len(text) > maxGrowth*MaxBytes {
		return nil, fmt.Errorf("JSON text of %d bytes: %w", len(text), errs.ErrArgument)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	token, err := dec.Token()
	if err != nil || token != json.Delim('{') {
		return nil, fmt.Errorf("schema is no JSON object: %w", errs.ErrArgument)
	}
	packed, err := pack(dec, token, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("text behind the JSON object: %w", errs.ErrArgument)
	}
	if len(packed) > MaxBytes {
		return nil, fmt.Errorf("schema takes %d bytes, at most %d: %w", len(packed), MaxBytes, errs.ErrArgument)
	}
	return packed, nil
}

// pack packs the value that starts with token.
func pack(dec *json.Decoder, token json.Token, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d: %w", MaxDepth, errs.ErrArgument)
	}
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	var err error
	switch v := token.(type) {
	case nil:
		err = enc.EncodeNil()
	case bool:
		err = enc.EncodeBool(v)
	case string:
		err = enc.EncodeString(v)
	case json.Number:
		err = packNumber(enc, v.String())
	case json.Delim:
		// The length comes before the elements, so these are packed first.
		var body []byte
		var first, second json.Token
		n := 0
		for dec.More() {
			next, err := dec.Token()
			if err != nil {
				return nil, badJSON(err)
			}
			switch n {
			case 0:
				first = next
			case 1:
				second = next
			}
			part, err := pack(dec, next, depth+1)
			if err != nil {
				return nil, err
			}
			body = append(body, part...)
			n++
		}
		if _, err := dec.Token(); err != nil {
			return nil, badJSON(err)
		}
		if v == '{' {
			if b, ok := bytesOf(first, second); ok && n == 2 {
				err = enc.EncodeBytes(b)
				break
			}
			err = enc.EncodeMapLen(n / 2)
		} else {
			err = enc.EncodeArrayLen(n)
		}
		buf.Write(body)
	}
	if err != nil {
		return nil, badJSON(err)
	}
	return buf.Bytes(), nil
}

// bytesOf returns the binary data that an object of this key and value stands
// for. What binary would not have written is an object like any other.
func bytesOf(key, value json.Token) ([]byte, bool) {
	text, ok := value.(string)
	if key != json.Token(bytesKey) || !ok {
		return nil, false
	}
	b, err := base64.StdEncoding.DecodeString(text)
	return b, err == nil && base64.StdEncoding.EncodeToString(b) == text
}

func badJSON(err error) error { return fmt.Errorf("JSON text: %v: %w", err, errs.ErrArgument) }

func packNumber(enc *msgpack.Encoder, text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return enc.EncodeInt(n)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return enc.EncodeUint(n)
	}
	if !bytes.ContainsAny([]byte(text), ".eE") {
		return fmt.Errorf("integer %s needs more than 64 bits", text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return err
	}
	return enc.EncodeFloat64(f)
}
