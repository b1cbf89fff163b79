package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loaderx/gopkg/errs"
)

// packedByPython is msgpack.packb of pythonJSON's object.
const (
	packedByPython = "8ca46b696e64a564656e7365a56474797065a33c6634aa6974656d5f7368617065950340ffcd012cce00011170" +
		"a6666f726d6174af6c6f61646572782d7a7265636f7264a776657273696f6e01a5636f646563a47a737464" +
		"a16efba166cb3ff8000000000000a162c3a178c0a175cf8000000000000000a36e6567d2ffff63c0"
	pythonJSON = `{"kind":"dense","dtype":"<f4","item_shape":[3,64,-1,300,70000],"format":"loaderx-zrecord",` +
		`"version":1,"codec":"zstd","n":-5,"f":1.5,"b":true,"x":null,"u":9223372036854775808,"neg":-40000}`
)

// The bytes are those that msgpack for Python, which loaderx uses, writes.
func TestSameBytesAsPython(t *testing.T) {
	want, _ := hex.DecodeString(packedByPython)
	got, err := fromJSON([]byte(pythonJSON))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%x, %v", got, err)
	}
	text, err := toJSON(want)
	if err != nil {
		t.Fatal(err)
	}
	// The angle bracket may be escaped: compare what the text means.
	var a, b any
	if json.Unmarshal(text, &a) != nil || json.Unmarshal([]byte(pythonJSON), &b) != nil {
		t.Fatalf("no JSON: %s", text)
	}
	back, err := fromJSON(text)
	if err != nil || !bytes.Equal(back, want) {
		t.Fatalf("there and back: %x, %v (%s)", back, err, text)
	}
}

func TestRoundTrips(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"b":1,"a":2}`, `{"f":1.0,"g":-2.5e-10,"h":1e+300}`, `{"s":"é\n\u0000"}`,
		`{"deep":[[[{"x":[]}]]]}`, `{"big":18446744073709551615,"small":-9223372036854775808}`,
		`{"long":"` + strings.Repeat("x", 70_000) + `"}`,
	} {
		path := t.TempDir()
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path)
		if err != nil || string(got) != text {
			t.Errorf("%.80s became %.80s, %v", text, got, err)
		}
	}
}

// Binary data, which other writers may note, is an object in JSON and binary
// again when that is written.
func TestBinaryDataRoundTrips(t *testing.T) {
	long := bytes.Repeat([]byte{0xff, 0x00, 'x', '\n'}, 20_000)
	for name, c := range map[string]struct {
		packed []byte
		text   string
	}{
		"empty": {[]byte{0x81, 0xa1, 'a', 0xc4, 0x00}, `{"a":{"__bytes__":""}}`},
		"text":  {[]byte{0x81, 0xa1, 'a', 0xc4, 0x03, 'a', 'b', 'c'}, `{"a":{"__bytes__":"YWJj"}}`},
		"in a list": {
			[]byte{0x81, 0xa1, 'a', 0x92, 0xc4, 0x01, 0xff, 0x01},
			`{"a":[{"__bytes__":"/w=="},1]}`,
		},
		"16 bits": {
			slices.Concat([]byte{0x81, 0xa1, 'a', 0xc5, 0x01, 0x2c}, long[:300]),
			`{"a":{"__bytes__":"` + base64.StdEncoding.EncodeToString(long[:300]) + `"}}`,
		},
		"32 bits": {
			slices.Concat([]byte{0x81, 0xa1, 'a', 0xc6, 0x00, 0x01, 0x38, 0x80}, long),
			`{"a":{"__bytes__":"` + base64.StdEncoding.EncodeToString(long) + `"}}`,
		},
		"many": {
			slices.Concat([]byte{0x81, 0xa1, 'a', 0xdc, 0x80, 0x00}, bytes.Repeat([]byte{0xc4, 0x00}, 1<<15)),
			`{"a":[` + strings.Repeat(`{"__bytes__":""},`, 1<<15-1) + `{"__bytes__":""}]}`,
		},
		"in the deepest map": {
			append(bytes.Repeat([]byte{0x81, 0xa1, 'a'}, MaxDepth-1), 0xc4, 0x01, 0xff),
			strings.Repeat(`{"a":`, MaxDepth-1) + `{"__bytes__":"/w=="}` + strings.Repeat(`}`, MaxDepth-1),
		},
	} {
		text, err := toJSON(c.packed)
		if err != nil || string(text) != c.text {
			t.Errorf("%s: %.60s, %v", name, text, err)
		}
		packed, err := fromJSON([]byte(c.text))
		if err != nil || !bytes.Equal(packed, c.packed) {
			t.Errorf("%s: %.60x, %v", name, packed, err)
		}
	}
}

func TestObjectsThatOnlyLookLikeBinaryDataStayObjects(t *testing.T) {
	for _, text := range []string{
		`{"a":{"__bytes__":"no base64"}}`, `{"a":{"__bytes__":"YWJj\n"}}`, `{"a":{"__bytes__":"/x=="}}`,
		`{"a":{"__bytes__":"YWJj","b":1}}`, `{"a":{"b":1,"__bytes__":"YWJj"}}`, `{"a":{"__bytes__":1}}`,
		`{"a":["__bytes__","YWJj"]}`,
	} {
		packed, err := fromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if back, err := toJSON(packed); err != nil || string(back) != text {
			t.Errorf("%s became %s, %v", text, back, err)
		}
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	cases := map[string][]byte{
		"empty":                     {},
		"an array":                  {0x90},
		"a number":                  {0x05},
		"map cut short":             {0x82, 0xa1, 'a'},
		"map that claims 2^32-1":    {0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, 'a', 0x01},
		"array that claims 2^32-1":  {0x81, 0xa1, 'a', 0xdd, 0xff, 0xff, 0xff, 0xff},
		"string that claims 2^32-1": {0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"bytes behind the map":      {0x80, 0x00},
		"integer key":               {0x81, 0x01, 0x01},
		"binary key":                {0x81, 0xc4, 0x01, 'a', 0x01},
		"binary cut short":          {0x81, 0xa1, 'a', 0xc4, 0x02, 0x00},
		"binary that claims 2^32-1": {0x81, 0xa1, 'a', 0xc6, 0xff, 0xff, 0xff, 0xff, 'x'},
		"binary at the deepest":     append(bytes.Repeat([]byte{0x81, 0xa1, 'a'}, MaxDepth), 0xc4, 0x01, 0x00),
		"extension":                 {0x81, 0xa1, 'a', 0xd4, 0x05, 0x00},
		"reserved code":             {0x81, 0xa1, 'a', 0xc1},
		"not UTF-8":                 {0x81, 0xa1, 'a', 0xa1, 0xff},
		"NaN":                       {0x81, 0xa1, 'a', 0xca, 0x7f, 0xc0, 0, 0},
		"nested without end":        bytes.Repeat([]byte{0x81, 0xa1, 'a'}, 1<<18),
		"nested arrays":             append([]byte{0x81, 0xa1, 'a'}, bytes.Repeat([]byte{0x91}, 1<<20-10)...),
		"too long":                  append([]byte{0x80}, make([]byte, MaxBytes)...),
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			if err := os.WriteFile(filepath.Join(path, FileName), content, 0o666); err != nil {
				t.Fatal(err)
			}
			if text, err := Read(path); !errors.Is(err, errs.ErrFormat) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%.50s, %v", text, err)
			}
		})
	}
	if _, err := Read(t.TempDir()); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("missing: %v", err)
	}
}

func TestBadJSONIsRefusedAndChangesNothing(t *testing.T) {
	path := t.TempDir()
	if err := Write(path, []byte(`{"kept":1}`)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": ``, "array": `[1]`, "cut": `{"a":`, "cut array": `{"a":[1,2`, "more": `{} {}`, "huge integer": `{"a":99999999999999999999}`,
		"huge float": `{"a":1e999}`, "deep": strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100),
		"NaN": `{"a":NaN}`, "too long": `{"a":"` + strings.Repeat("x", MaxBytes) + `"}`,
	} {
		if err := Write(path, []byte(text)); !errors.Is(err, errs.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := Read(path); err != nil || string(got) != `{"kept":1}` {
		t.Errorf("%s, %v", got, err)
	}
	entries, _ := os.ReadDir(path)
	if len(entries) != 1 {
		t.Errorf("left files behind: %v", entries)
	}
}

// Any bytes: an error, or JSON that packs again.
func FuzzToJSON(f *testing.F) {
	seed, _ := hex.DecodeString(packedByPython)
	f.Add(seed)
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x81, 0xa1, 'a', 0xc4, 0x01, 0xff})
	f.Fuzz(func(t *testing.T, packed []byte) {
		text, err := toJSON(packed)
		if err != nil {
			if !errors.Is(err, errs.ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("not JSON: %q", text)
		}
		if len(text) > maxGrowth*len(packed)+64 {
			t.Fatalf("%d bytes became %d", len(packed), len(text))
		}
		if _, err := fromJSON(text); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

// Any text: an error, or a file that reads back.
func FuzzFromJSON(f *testing.F) {
	f.Add([]byte(pythonJSON))
	f.Add([]byte(`{"a":{"__bytes__":"YWJj"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		packed, err := fromJSON(text)
		if err != nil {
			if !errors.Is(err, errs.ErrArgument) {
				t.Fatal(err)
			}
			return
		}
		if _, err := toJSON(packed); err != nil {
			t.Fatalf("%x: %v", packed, err)
		}
	})
}
