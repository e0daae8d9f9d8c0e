package main

import (
	"encoding/json"
	"os"

	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	shim "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim"
)

// property is one property as a Pulumi program sees it: may it be given, and what is inside it.
type property struct {
	Input  bool                `json:"input"`
	Fields map[string]property `json:"fields"` // null for what is no object
}

// printPropertyNames writes every token with its properties as JSON, so that a test can compare
// them with the Python package without a build of its own.
func printPropertyNames(info tfbridge.ProviderInfo) {
	names := map[string]map[string]property{}
	for name, resource := range info.Resources {
		names[string(resource.Tok)] = propertiesOf(
			info.P.ResourcesMap().Get(name).Schema(), resource.Fields)
	}
	for name, function := range info.DataSources {
		names[string(function.Tok)] = propertiesOf(
			info.P.DataSourcesMap().Get(name).Schema(), function.Fields)
	}
	if err := json.NewEncoder(os.Stdout).Encode(names); err != nil {
		panic(err)
	}
}

func propertiesOf(
	attributes shim.SchemaMap, fields map[string]*tfbridge.SchemaInfo,
) map[string]property {
	properties := map[string]property{}
	attributes.Range(func(name string, attribute shim.Schema) bool {
		if attribute.Removed() != "" {
			return true
		}
		entry := property{Input: attribute.Required() || attribute.Optional()}
		if nested, ok := attribute.Elem().(shim.Resource); ok {
			entry.Fields = propertiesOf(nested.Schema(), nil)
		}
		properties[tfbridge.TerraformToPulumiNameV2(name, attributes, fields)] = entry
		return true
	})
	return properties
}
